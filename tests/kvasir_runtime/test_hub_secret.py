"""A pod that reaches the hub by its Secret: token, endpoint, certificates and proxy, or not at all."""

import base64
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from fakes import file_server, hub, source_secret
from fakes.hub_process import READS_HEADER, TOKEN, fetched
from kvasir_api import names


@pytest.fixture
def settings(tmp_path):
    """An empty Secret."""
    folder = tmp_path / "secret"
    folder.mkdir()
    return folder


def test_a_pod_reaches_the_hub_by_the_files_of_its_secret(tmp_path, settings):
    (settings / "token").write_text(f"{TOKEN}_of_a_pod\n")
    pod = {names.ENV_SOURCE_SETTINGS: str(settings), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_TOKEN": ""}
    with hub.serving() as found:
        (settings / "endpoint").write_text(f"{found.url}\n")
        assert Path(fetched(found, tmp_path, **pod)).is_dir()
        assert {key for _, _, key in found.asked} == {f"Bearer {TOKEN}_of_a_pod"}
        found.fault = "busy"
        line = fetched(found, tmp_path / "other", **pod)
        assert line.endswith(f"; {source_secret.REACH}")
        found.fault = "gated"
        line = fetched(found, tmp_path / "other", **pod)
        assert line.endswith(
            "put a token that may read it under the key token into the Secret of spec.model.secretName"
        )
        (settings / "endpoint").write_text("nowhere")
        line = fetched(found, tmp_path / "other", **pod)
        assert line.endswith("key endpoint of the Secret of spec.model.secretName is no http:// or https:// URL")


def test_a_pod_reaches_the_hub_with_the_certificates_of_its_secret(tmp_path, settings):
    pod = {names.ENV_SOURCE_SETTINGS: str(settings)}
    with hub.serving() as found, file_server.serving(upstream=found.url, tls=settings) as front:
        (settings / "endpoint").write_text(front.url)
        assert (Path(fetched(found, tmp_path, **pod)) / hub.WEIGHTS).read_bytes() == hub.FILES[hub.WEIGHTS]
        (settings / "ca.crt").unlink()
        line = fetched(found, tmp_path / "other", **pod)
    assert "certificate verify failed" in line
    assert line.endswith(f"; {source_secret.REACH}")


def test_a_pod_reaches_the_hub_by_the_proxy_of_its_secret(tmp_path, settings):
    pod = {names.ENV_SOURCE_SETTINGS: str(settings)} | dict.fromkeys(source_secret.PROXIES, "")
    (settings / "endpoint").write_text("http://hub.example")
    with hub.serving() as found, file_server.serving(upstream=found.url) as proxy:
        (settings / "proxy").write_text(proxy.url.replace("//", "//me:a%2Fb@"))
        assert (Path(fetched(found, tmp_path, **pod)) / hub.WEIGHTS).read_bytes() == hub.FILES[hub.WEIGHTS]
        assert {urlsplit(path).netloc for _, path, *_ in proxy.asked} == {"hub.example"}
        assert proxy.proxied == {f"Basic {base64.b64encode(b'me:a/b').decode()}"}


def test_a_pod_that_is_offline_does_not_ask_the_hub(tmp_path, settings):
    pod = {names.ENV_SOURCE_SETTINGS: str(settings)}
    with hub.serving() as found:
        folder = fetched(found, tmp_path, **pod)
        asked = len(found.asked)
        (settings / "offline").write_text("true\n")
        assert fetched(found, tmp_path, **pod) == fetched(found, tmp_path, revision=hub.COMMIT, **pod) == folder
        says = "refused: ModelUnavailable: no source is asked for model org/name, as key offline of the Secret of spec."
        assert fetched(found, tmp_path / "other", **pod).startswith(says)
        assert fetched(found, tmp_path, code=READS_HEADER.replace("TIMEOUT_S", "1"), **pod).startswith(says)
        assert len(found.asked) == asked
