"""Requests that are ended by their id: the client is told in its surface's words, and the blocks are free."""

import threading

import openai
import pytest

from fakes import checkpoints
from fakes.api_process import JSON, api_process

pytestmark = pytest.mark.xdist_group("server-aborts")  # its process is shared by the tests of this file


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = checkpoints.write(tmp_path_factory.mktemp("model") / "tiny")
    with api_process(model, faults={"step_s": 0.1}) as running:
        yield running


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0) as made:
        yield made


def idle(server):
    return server.state()["running"] == 0 and server.ask("/load").json["server_load"] == 0


def test_a_stream_ends_with_an_error_and_its_blocks_are_free(server, client):
    stream = client.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "the plan"}], max_tokens=3000, stream=True
    )
    answer_id = next(stream).id
    assert server.ask("/abort_requests", {"request_ids": [answer_id, "none"]}).json == {"num_aborted": 1}
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert caught.value.code == "request_aborted"
    server.until("idle", lambda: idle(server))
    assert server.state()["kv"]["pinned_tokens"] == 0
    assert server.ask("/abort_requests", {"request_ids": [answer_id]}).json == {"num_aborted": 0}


def test_a_whole_answer_is_refused_under_the_id_that_came_with_it(server):
    found = []
    body = {"model": "tiny", "prompt": "the plan", "max_tokens": 3000, "n": 2}
    headers = {**JSON, "x-request-id": "mine.1"}
    thread = threading.Thread(target=lambda: found.append(server.ask("/v1/completions", body, headers=headers)))
    thread.start()
    server.until("aborted", lambda: server.ask("/abort_request", {"rid": "mine.1"}).json["num_aborted"])
    thread.join(60)
    (answer,) = found
    assert (answer.status, answer.error["code"]) == (499, "request_aborted")
    assert answer.headers["x-should-retry"] == "false"
    server.until("idle", lambda: idle(server))


@pytest.mark.parametrize(
    ("path", "body", "code", "param"),
    [
        ("/abort_requests", {}, "missing_required_parameter", "request_ids"),
        ("/abort_requests", {"request_ids": "a"}, "invalid_value", "request_ids"),
        ("/abort_requests", {"request_ids": [1]}, "invalid_value", "request_ids[0]"),
        ("/abort_requests", {"rid": "a"}, "missing_required_parameter", "request_ids"),
        ("/abort_request", {}, "missing_required_parameter", "rid"),
        ("/abort_request", {"rid": "a", "abort_all": True}, "unsupported_parameter", "abort_all"),
    ],
)
def test_wrong_bodies_are_refused_by_name(server, path, body, code, param):
    answer = server.ask(path, body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)
