"""A served checkpoint's own defaults reach the engine, over every surface whose client left them open."""

import json

import pytest

from fakes import checkpoints
from fakes.api_process import api_process
from kvasir_api.names import EXIT_REFUSED

CHAT = {"messages": [{"role": "user", "content": "a"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = checkpoints.write(tmp_path_factory.mktemp("models") / "said")
    said = {"eos_token_id": 0, "temperature": 0.25, "top_k": 7, "max_new_tokens": 4}
    (folder / "generation_config.json").write_text(json.dumps(said))
    return folder


def drawn(server, log, path, body):
    """The sampling of the last request that the engine heard of."""
    assert server.ask(path, {"model": "said", **body}).status == 200
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    return [line["request"]["sampling"] for line in lines if line["type"] == "submit"][-1]


def test_defaults_apply_until_a_request_says_otherwise(model, tmp_path):
    log = tmp_path / "log"
    with api_process(model, faults={"log": str(log)}) as server:
        said = drawn(server, log, "/v1/chat/completions", CHAT)
        assert (said["temperature"], said["top_k"], said["max_tokens"]) == (0.25, 7, 4)
        asked = drawn(server, log, "/v1/chat/completions", {**CHAT, "temperature": 1.0, "top_k": -1, "max_tokens": 9})
        assert (asked.get("temperature", 1.0), asked.get("top_k", 0), asked["max_tokens"]) == (1.0, 0, 9)
        messages = drawn(server, log, "/v1/messages", {**CHAT, "max_tokens": 9})
        assert (messages["temperature"], messages["top_k"]) == (0.25, 7)
        responses = drawn(server, log, "/v1/responses", {"input": "a"})
        assert (responses["temperature"], responses["top_k"], responses["max_tokens"]) == (0.25, 7, 4)


def test_none_leaves_the_defaults_of_the_api(model, tmp_path):
    log = tmp_path / "log"
    with api_process(model, "--generation-config", "none", faults={"log": str(log)}) as server:
        said = drawn(server, log, "/v1/completions", {"prompt": "a"})
        assert (said.get("temperature", 1.0), said.get("top_k", 0), said["max_tokens"]) == (1.0, 0, 16)


def test_a_value_out_of_bounds_refuses_to_start(tmp_path):
    folder = checkpoints.write(tmp_path / "said")
    (folder / "generation_config.json").write_text('{"top_p": 4}')
    with api_process(folder, wait="nothing") as server:
        assert server.wait() == EXIT_REFUSED
        assert "--generation-config none" in server.output()
