"""Every wrong request to the real server gets an answer in OpenAI's shape, with advice about retries."""

import json
import socket
from pathlib import Path

import pytest

from fakes import checkpoints
from fakes.api_process import JSON, ApiProcess, api_process
from kvasir_api import names

COMPLETION = {"model": "tiny", "prompt": "hello ", "max_tokens": 4}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
LONG, LONGEST = ([{"role": "user", "content": "x " * count}] for count in (400, 20_000))

pytestmark = pytest.mark.xdist_group("server-errors")  # its processes are shared by the tests of this file


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def server(model):
    with api_process(model, "--max-body-bytes", "65536", "--max-model-len", "512") as running:
        yield running


def put(body, **fields):
    return {**body, **fields}


@pytest.mark.parametrize(
    ("path", "body", "status", "code", "param"),
    [
        ("/v1/completions", b"{", 400, "invalid_json", None),
        ("/v1/completions", b"[]", 400, "invalid_json", None),
        ("/v1/completions", b"", 400, "invalid_json", None),
        ("/v1/completions", b'{"model":"tiny","prompt":"x","temperature":NaN}', 400, "invalid_json", None),
        ("/v1/completions", b'{"model":"tiny","prompt":"x","temperature":1e999}', 400, "invalid_value", "temperature"),
        ("/v1/completions", put(COMPLETION, temperature="hot"), 400, "invalid_value", "temperature"),
        ("/v1/completions", put(COMPLETION, n=10**9), 400, "invalid_value", "n"),
        ("/v1/completions", put(COMPLETION, prompt=[1, 999_999]), 400, "invalid_value", "prompt"),
        ("/v1/completions", put(COMPLETION, prompt=""), 400, "invalid_value", "prompt"),
        ("/v1/completions", put(COMPLETION, stop_token_ids=[5000]), 400, "invalid_value", "stop_token_ids"),
        ("/v1/completions", put(COMPLETION, max_tokens=600), 400, "context_length_exceeded", "max_tokens"),
        ("/v1/completions", put(COMPLETION, prompt=[1] * 512), 400, "context_length_exceeded", "prompt"),
        ("/v1/chat/completions", put(CHAT, messages=LONG), 400, "context_length_exceeded", "messages"),
        ("/v1/chat/completions", put(CHAT, messages=LONGEST), 400, "context_length_exceeded", "messages"),
        ("/v1/completions", put(COMPLETION, suffix="x"), 400, "unsupported_parameter", "suffix"),
        ("/v1/completions", put(COMPLETION, model="other"), 404, "model_not_found", "model"),
        ("/v1/completions", {"model": "tiny"}, 400, "missing_required_parameter", "prompt"),
        ("/v1/chat/completions", put(CHAT, messages=[]), 400, "invalid_value", "messages"),
        (
            "/v1/chat/completions",
            put(CHAT, messages=[{"role": "x y", "content": "x"}]),
            400,
            "invalid_value",
            "messages[0].role",
        ),
        (
            "/v1/chat/completions",
            put(CHAT, tools=[{"type": "function", "function": {"name": "f"}}]),
            400,
            "unsupported_parameter",
            "tools",
        ),
        ("/v1/nothing", put(COMPLETION), 404, "not_found", None),
        ("/v1/models", put(COMPLETION), 405, "method_not_allowed", None),
        ("/v1/completions", b"x" * 70_000, 413, "body_too_large", None),
    ],
)
def test_wrong_requests(server: ApiProcess, path, body, status, code, param):
    answer = server.ask(path, body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (status, code, param)
    assert answer.error["type"] == "invalid_request_error"
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-should-retry"] == "false"
    assert len(answer.headers["x-request-id"]) == 32


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [("/", "GET", 404), ("/v1", "GET", 404), ("/v1/models/none", "GET", 404), ("/v1/completions", "GET", 405)],
)
def test_wrong_routes(server: ApiProcess, path, method, status):
    answer = server.ask(path, method=method)
    assert answer.status == status
    assert answer.error["message"]


def test_numbers_are_in_the_refusal_of_a_long_prompt(server: ApiProcess):
    message = server.ask("/v1/completions", put(COMPLETION, prompt=[1] * 500, max_tokens=50)).error["message"]
    assert all(number in message for number in ("512", "500", "50", "550"))


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_another_content_type_is_refused(server: ApiProcess, kind):
    answer = server.ask("/v1/completions", COMPLETION, headers={"content-type": kind})
    assert (answer.status, answer.error["code"]) == (415, "unsupported_media_type")


def test_a_compressed_body_is_refused(server: ApiProcess):
    answer = server.ask("/v1/completions", COMPLETION, headers={**JSON, "content-encoding": "gzip"})
    assert answer.status == 415


def test_a_chunked_body_over_the_limit_is_cut_off(server: ApiProcess):
    with socket.create_connection(server.http, timeout=60) as connection:
        connection.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        try:
            for _ in range(40):
                connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        except OSError:
            pass  # it may have hung up already
        answer = connection.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer


def test_what_is_not_http_does_no_harm(server: ApiProcess):
    with socket.create_connection(server.http, timeout=60) as connection:
        connection.sendall(b"\x16\x03\x01garbage\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 400")
    assert server.ask("/v1/completions", COMPLETION).status == 200


def test_sane_request_ids_are_kept_and_others_replaced(server: ApiProcess):
    sane = server.ask("/v1/models", headers={"x-request-id": "trace-1.2:3"})
    assert sane.headers["x-request-id"] == "trace-1.2:3"
    wild = server.ask("/v1/models", headers={"x-request-id": "a b" + "c" * 300})
    assert len(wild.headers["x-request-id"]) == 32
    assert int(sane.headers["openai-processing-ms"]) >= 0


def test_an_engine_that_refuses_a_request_is_an_error_not_a_silence(model):
    with api_process(model, faults={"refuse": "this one never fits"}) as server:
        whole = server.ask("/v1/completions", COMPLETION)
        assert (whole.status, whole.error["message"]) == (500, "this one never fits")
        streamed = server.ask("/v1/completions", put(COMPLETION, stream=True))
        assert (streamed.status, streamed.error["message"]) == (500, "this one never fits")


def test_keys_close_v1_and_leave_health_open_and_browsers_may_call(model):
    args = ("--api-key", "secret-one", "--api-key", "secret-two", "--cors-origin", "https://app.example")
    with api_process(model, *args, env={"KVASIR_API_KEY": "secret-three"}) as server:
        _check_keys(server)
        _check_origins(server)
        assert "secret" not in server.output()
        assert b"secret" not in Path(f"/proc/{server.engine_pid}/cmdline").read_bytes()


def _check_keys(server: ApiProcess):
    for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret-one"}):
        for path in ("/v1/models", "/v1/none", "/v1"):
            answer = server.ask(path, headers=headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
    for key in ("secret-one", "secret-two", "secret-three"):
        assert server.ask("/v1/models", headers={"authorization": f"Bearer {key}"}).status == 200
    assert server.ask("/health").status == 200
    assert server.ask("/metrics").status == 200


def _check_origins(server: ApiProcess):
    asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
    preflight = server.ask("/v1/chat/completions", method="OPTIONS", headers=asked)
    assert preflight.status == 200
    assert preflight.headers["access-control-allow-origin"] == "https://app.example"
    refused = server.ask("/v1/models", headers={"origin": "https://app.example"})
    assert refused.status == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example"
    other = server.ask("/v1/models", headers={"origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


def test_a_full_queue_is_429_with_a_time_to_come_back(model, tmp_path):
    gate = tmp_path / "gate"
    faults = {"gate": str(gate), "max_sequences": 2}
    with api_process(model, "--max-waiting", "3", faults=faults) as server:
        many = server.ask("/v1/completions", put(COMPLETION, n=6))
        assert (many.status, many.error["code"]) == (429, "overloaded")
        assert 1 <= int(many.headers["retry-after"]) <= 75
        assert "x-should-retry" not in many.headers
        back = {**JSON, names.HEADER_REFER: "http://gateway/v1/completions"}
        referred = server.ask("/v1/completions", put(COMPLETION, n=6), headers=back)
        assert (referred.status, referred.headers["location"]) == (307, "http://gateway/v1/completions")
        assert referred.error["code"] == "overloaded"
        undecided = {**back, names.HEADER_ORIGINAL_URL: "http://gateway/v1/completions"}
        assert server.ask("/v1/completions", put(COMPLETION, n=6), headers=undecided).status == 429
        gate.touch()
        assert server.ask("/v1/completions", put(COMPLETION, n=5)).status == 200


def test_logs_are_json_with_request_ids_and_without_prompts(model):
    with api_process(model, "--log-format", "json", "--served-model-name", "tiny") as server:
        secret_prompt = "abracadabra"
        server.ask("/v1/completions", put(COMPLETION, prompt=secret_prompt), headers={**JSON, "x-request-id": "me"})
        server.until("the log line", lambda: '"request_id": "me"' in server.output())
        lines = [json.loads(line) for line in server.output().splitlines()]
        (line,) = [line for line in lines if line.get("request_id") == "me"]
        assert (line["status"], line["completion_tokens"], line["finish_reason"]) == (200, 4, "length")
        assert secret_prompt not in server.output()
        assert {"listening", "ready"} <= {line["message"] for line in lines}
