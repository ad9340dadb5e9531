"""The Secret of a pod: a key that keeps it from asking any source."""

import pytest

from fakes import source_secret
from kvasir_runtime import source
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch import fetched_model

SHA256 = "0" * 64
URIS = ("s3://bucket/a", "gs://bucket/a", "oci://127.0.0.1:9/org/name:v1", f"https://127.0.0.1:9/a.tar#sha256={SHA256}")


@pytest.fixture
def secret(tmp_path, monkeypatch):
    return source_secret.mounted(tmp_path, monkeypatch)


@pytest.mark.parametrize("uri", URIS)
@pytest.mark.parametrize("ask", [source.resolve, fetched_model.listing])
def test_what_is_missing_of_a_pod_that_is_offline_is_said(secret, uri, ask):
    (secret / "offline").write_text("True\n")
    says = (
        f"ModelUnavailable: no source is asked for model {uri.partition('#')[0]}, as key offline of the Secret of"
        " spec.model.secretName is true; name a version in spec.model.uri that is whole in its cache, or remove"
        " that key"
    )
    with pytest.raises(ModelUnavailableError) as refused:
        ask(uri)
    assert str(refused.value) == says


def test_a_switch_that_is_neither_on_nor_off_is_refused(secret):
    (secret / "offline").write_text("yes")
    with pytest.raises(ModelUnavailableError, match=r"key offline of the Secret of .* is neither true nor"):
        source.resolve(URIS[0])


def test_a_switch_that_is_off_changes_nothing(secret):
    (secret / "offline").write_text("false")
    (secret / "endpoint").write_text("http://127.0.0.1:9")
    with pytest.raises(ModelUnavailableError, match="cannot be reached"):
        fetched_model.listing(URIS[2], sleep=lambda _: None)
