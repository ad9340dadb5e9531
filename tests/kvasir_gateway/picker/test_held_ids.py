"""Which requests are about what one replica holds, and what is answered where none does."""

import json

import pytest

from kvasir_api import openai_errors
from kvasir_gateway.picker.held_ids import HeldIds, held_ids
from kvasir_gateway.picker.request_parser import ImmediateResponse

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("path", "body", "ids"),
    [
        ("/v1/responses/resp_1", b"", ("resp_1",)),
        ("/v1/responses/resp_1/cancel", b"", ("resp_1",)),
        (f"{CHAT}/chatcmpl-1/tool_results", b"{}", ("chatcmpl-1",)),
        ("/abort_requests", b'{"request_ids": ["cmpl-1", "cmpl-2", "cmpl-1"]}', ("cmpl-1", "cmpl-2")),
        ("/abort_request", b'{"rid": "msg_1", "abort_all": false}', ("msg_1",)),
    ],
)
def test_ids_are_read_from_path_or_body(path, body, ids):
    found = held_ids(path, body)
    assert isinstance(found, HeldIds)
    assert found.ids == ids


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/responses/input_tokens", "/tokenize"])
def test_any_replica_may_answer_others(path):
    assert held_ids(path, b"{}") is None


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{", b'{"request_ids": "a"}', b'{"request_ids": []}', b'{"abort_all": true}', b'{"rid": 1}'),
        json.dumps({"request_ids": [str(n) for n in range(4097)]}).encode(),
    ],
)
def test_an_abort_names_one_to_4096_requests(body):
    found = held_ids("/abort_requests", body)
    assert isinstance(found, ImmediateResponse)
    assert (found.status, json.loads(found.body)["error"]["param"]) == (400, "request_ids")


def test_what_is_answered_where_none_holds_it_or_several_do():
    path = "/abort_request"
    abort, stored = held_ids(path, b'{"rid": "cmpl-1"}'), held_ids("/v1/responses/resp_1", b"")
    assert isinstance(abort, HeldIds)
    assert isinstance(stored, HeldIds)
    assert (abort.aborts, stored.aborts) == (True, False)
    nothing = abort.unheld(0, abort.missing, path)
    assert (nothing.status, nothing.body) == (200, b'{"num_aborted":0}')
    assert abort.unheld(0, openai_errors.unauthorized(), path).status == 401
    assert stored.unheld(0, stored.missing, "/v1/responses/resp_1").status == 404
    several = abort.unheld(2, abort.missing, path)
    assert (several.status, b"at 2 replicas" in several.body) == (400, True)
