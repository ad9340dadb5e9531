"""Faults at a runtime's own port that no other file has: who gets in, what is fetched, what is shown, who holds on."""

import json
import socket
from pathlib import Path

import pytest

from fakes import checkpoints
from fakes.api_process import JSON, ApiProcess, api_process
from kvasir_api import names

pytestmark = pytest.mark.xdist_group("server-faults")  # its process is shared by the tests of this file

KEY = "sk-4f1d2c9b7a"
AUTHORIZED = {**JSON, "authorization": f"Bearer {KEY}"}
CHAT = {"model": "tiny", "max_tokens": 2}
BODY = {"model": "tiny", "prompt": "hello ", "max_tokens": 4}
PATIENCE_S = 90.0


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def server(model):
    with api_process(model, "--api-key", KEY, "--log-format", "json") as running:
        yield running


@pytest.fixture(scope="module")
def unfinished_head(server: ApiProcess):
    """A client that never ends the head of its request; it has begun when the first test does."""
    with socket.create_connection(server.http, timeout=PATIENCE_S) as connection:
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx-slow: ")
        yield connection


@pytest.fixture(autouse=True)
def _begins_with(unfinished_head) -> None:
    """It is there in every test."""


OPS = (
    ("GET", names.PATH_STATE),
    ("POST", names.PATH_DRAIN),
    ("DELETE", names.PATH_DRAIN),
    ("POST", names.PATH_RESET_PREFIX_CACHE),
    ("GET", names.PATH_PREFIXES),
    ("POST", f"{names.PATH_PEERS}?address=http://10.0.0.1:8001"),
    ("POST", f"{names.PATH_PREFETCH}?address=http://10.0.0.1:8001"),
    ("POST", f"{names.PATH_CONTINUATION_KEYS}?sealed=x"),
    ("GET", names.PATH_LIVEZ),
    ("GET", names.PATH_READYZ),
    ("GET", names.PATH_STARTUPZ),
    ("POST", "/pause"),
    ("POST", "/v1/load_lora_adapter"),
    ("POST", "/start_profile"),
    ("GET", "/docs"),
)


@pytest.mark.parametrize(("method", "path"), OPS)
@pytest.mark.parametrize("headers", [JSON, AUTHORIZED], ids=["without a key", "with a key"])
def test_nothing_that_changes_a_replica_is_at_the_port_of_clients(server: ApiProcess, method, path, headers):
    assert server.ask(path, method=method, headers=headers).status in {401, 404}
    assert server.state()["phase"] == "ready"


def test_no_image_is_fetched(server: ApiProcess):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        for url in (
            f"http://127.0.0.1:{port}/a.png",
            f"http://user@127.0.0.1:{port}\\@example.com/a.png",
            "http://169.254.169.254/latest/meta-data",
            "file:///etc/passwd",
            "data:image/png;base64," + "A" * 1_000_000,
        ):
            part = {"type": "image_url", "image_url": {"url": url}}
            body = {**CHAT, "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]}
            answer = server.ask("/v1/chat/completions", body, headers=AUTHORIZED)
            assert answer.status == 400, url[:60]
            assert answer.error["param"].startswith("messages[0].content")
        listener.settimeout(0.05)
        with pytest.raises(TimeoutError):
            listener.accept()


def test_a_key_is_shown_nowhere(server: ApiProcess):
    answers = [
        server.ask("/v1/completions", BODY, headers=AUTHORIZED),
        server.ask(f"/v1/completions?api_key={KEY}", BODY),
        server.ask("/v1/completions", {**BODY, "api_key": KEY}, headers=AUTHORIZED),
        server.ask("/v1/completions", {**BODY, "temperature": "warm"}, headers=AUTHORIZED),
        server.ask("/v1/completions", BODY, headers={**JSON, "authorization": f"Basic {KEY}"}),
        server.ask("/metrics"),
        server.ask("/openapi.json"),
        server.ask("/state", ops=True),
        server.ask("/prefixes", ops=True),
    ]
    assert [answer.status for answer in answers[:2]] == [200, 401], "a key in the target is none"
    for answer in answers:
        assert KEY.encode() not in answer.body
        assert not any(KEY in value for value in answer.headers.values())
    server.until("the log", lambda: '"status": 401' in server.output())
    assert KEY not in server.output()
    assert KEY.encode() not in Path(f"/proc/{server.engine_pid}/cmdline").read_bytes()
    assert KEY.encode() not in Path(f"/proc/{server.engine_pid}/environ").read_bytes()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_its_first_token_is_forgotten(model, tmp_path, stream):
    log = tmp_path / "log"
    with api_process(model, faults={"gate": str(tmp_path / "never"), "log": str(log)}) as held:
        body = json.dumps({**BODY, "stream": stream}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        with socket.create_connection(held.http) as connection:
            connection.sendall(f"{head}\r\n\r\n".encode() + body)
            held.until("it to wait", lambda: held.state()["running"] == 1, PATIENCE_S)
        held.until("it to be gone", lambda: held.state()["running"] == 0, PATIENCE_S)
        assert '"type":"abort"' in log.read_text()
        held.until("no request to be served", lambda: held.ask("/load").json["server_load"] == 0, PATIENCE_S)


def test_a_head_that_does_not_end_is_cut_off(server: ApiProcess, unfinished_head):
    found = b""
    while part := unfinished_head.recv(65536):
        found += part
    assert found.startswith(b"HTTP/1.1 408 ") or not found
    assert server.ask("/v1/models", headers=AUTHORIZED).status == 200
