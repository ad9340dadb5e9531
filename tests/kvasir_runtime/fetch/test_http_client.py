"""Requests through a proxy."""

import base64

from fakes import file_server, source_secret
from kvasir_runtime.fetch.http_client import HttpClient, origin
from kvasir_runtime.fetch.settings import SourceSettings


def test_a_proxy_gets_user_and_password_as_they_are(tmp_path):
    with file_server.serving({"http://web.example/a": b"found"}) as proxy:
        (tmp_path / "proxy").write_text(proxy.url.replace("//", "//me%40home:a%2Fb%3Ac@"))
        body, _ = HttpClient(SourceSettings(tmp_path), "m").text("http://web.example/a", {}, 100)
    assert body == b"found"
    assert proxy.proxied == {f"Basic {base64.b64encode(b'me@home:a/b:c').decode()}"}


def test_a_host_that_no_proxy_names_is_asked_itself(tmp_path, monkeypatch):
    secret = source_secret.mounted(tmp_path, monkeypatch)
    monkeypatch.setenv("NO_PROXY", "web.example,127.0.0.1")
    with file_server.serving({"/a": b"found"}) as web, file_server.serving() as proxy:
        (secret / "proxy").write_text(proxy.url)
        body, _ = HttpClient(SourceSettings(secret), "m").text(f"{web.url}/a", {}, 100)
    assert (body, proxy.asked) == (b"found", [])


def test_a_password_is_no_part_of_an_origin():
    assert origin("https://user:secret@store.example:8443/x") == "https://store.example:8443"
