"""What every surface's framing owes the streams: signs of life that clients skip, and an end in its own words."""

import json

import pytest

from fakes import tiny_tokenizer
from kvasir_api import openai_errors
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import TokenLabels
from kvasir_runtime.frontend.output_processor import OutputDelta
from kvasir_runtime.frontend.parsing.parts import (
    CallArguments,
    CallBegin,
    CallBroken,
    CallCut,
    CallEnd,
    Content,
    Reasoning,
    ToolCall,
)
from kvasir_runtime.server.api.anthropic.serialize import MessagesSerializer
from kvasir_runtime.server.api.ollama.serialize import OllamaSerializer
from kvasir_runtime.server.api.responses.serialize import ResponsesSerializer
from kvasir_runtime.server.api.serializer import RequestUsage
from kvasir_runtime.wire import EngineRequest, SamplingConfig

LABELS = TokenLabels(tiny_tokenizer.tokenizer())
JOB = GenerationRequest(
    answer_id="resp_1",
    model="m",
    chat=True,
    stream=True,
    include_usage=False,
    requests=(EngineRequest(request_id="r", prompt=(1,), sampling=SamplingConfig(max_tokens=9)),),
    num_prompts=1,
    prompt_tokens=5,
    stops=(),
    include_stop=False,
)
ENDING = RequestUsage(
    prompt_tokens=5,
    completion_tokens=4,
    reasoning_tokens=1,
    cached_tokens=2,
    total_s=1.5,
    queue_s=0.25,
    first_token_s=0.75,
    prompt_s=0.5,
    answer_s=-1.0,
)


def messages():
    return MessagesSerializer(JOB, max_tokens=9)


def lines(*, chat=True):
    return OllamaSerializer(JOB, 0, LABELS, model="m", chat=chat)


def responses(kept=None):
    return ResponsesSerializer(JOB, 0, LABELS, repeated={}, keep=(kept if kept is not None else []).append)


def events(raw):
    """Named events of a stream; comments are none."""
    found = []
    for block in raw.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            document = json.loads(fields["data"])
            assert document["type"] == fields["event"]
            found.append(document)
    return found


def piece(*parts, reason=None, called=False):
    return OutputDelta(index=0, text="?", parts=list(parts), reason=reason, called=called)


def test_signs_of_life_say_nothing():
    assert [event["type"] for event in events(messages().keep_alive)] == ["ping"]
    assert events(responses().keep_alive) == []
    for chat in (True, False):
        (line,) = lines(chat=chat).keep_alive.splitlines()
        document = json.loads(line)
        assert document["done"] is False
        assert (document["message"]["content"] if chat else document["response"]) == ""


@pytest.mark.parametrize("made", [messages, responses, lines])
def test_a_piece_that_holds_text_back_says_nothing(made):
    assert made().deltas([piece()]) == b""


BROKEN = [Content("a"), CallBegin(0, "c", "f"), CallArguments(0, "{"), CallBroken(0, "<call>{")]


def test_a_call_that_broke_stays_as_it_was_told_where_it_was_told():
    told = events(messages().deltas([piece(*BROKEN)]))
    assert [event["type"] for event in told].count("content_block_stop") == 2
    framing = responses()
    framing.deltas([piece(*BROKEN)])
    assert [item["status"] for item in framing.document()["output"]] == ["completed", "incomplete"]
    (line,) = lines().deltas([piece(*BROKEN)]).splitlines()
    assert json.loads(line)["message"]["content"] == "a<call>{"


CUT = [CallBegin(0, "c", "f"), CallArguments(0, '{"a": [1, {"b": "x'), CallCut(0)]


def test_a_call_that_was_cut_has_its_arguments_as_far_as_they_go():
    """In text where the API has text; the members that are known where it has an object."""
    told = events(messages().deltas([piece(*CUT, reason="length")]))
    assert told[1]["delta"]["partial_json"] == '{"a": [1, {"b": "x'
    assert told[-1]["type"] == "content_block_stop"
    framing = responses()
    framing.deltas([piece(*CUT, reason="length")])
    (item,) = framing.document()["output"]
    assert (item["status"], item["arguments"]) == ("incomplete", '{"a": [1, {"b": "x')
    (line,) = lines().deltas([piece(*CUT, reason="length")]).splitlines()
    (call,) = json.loads(line)["message"]["tool_calls"]
    assert call["function"]["arguments"] == {"a": [1, {"b": "x"}]}


@pytest.mark.parametrize(
    ("arguments", "known"), [("", {}), ("{", {}), ('{"a', {}), ('{"a": ', {}), ('{"a": 1', {"a": 1})]
)
def test_the_known_members_of_cut_arguments(arguments, known):
    assert ToolCall("c", "f", arguments, cut=True).input == known


@pytest.mark.parametrize("made", [messages, responses])
def test_thoughts_text_and_calls_take_turns(made):
    framing = made()
    framing.begin(ENDING)
    parts = [
        Reasoning("t"),
        Content("a"),
        CallBegin(0, "c", "f"),
        CallArguments(0, "{}"),
        CallEnd(0),
        Content("b"),
        Reasoning("u"),
    ]
    for part in parts:
        framing.deltas([piece(part)])
    told = events(framing.end(ENDING))
    assert told[0]["type"] in {"content_block_stop", "response.reasoning_text.done"}
    if made is responses:
        kinds = [item["type"] for item in framing.document()["output"]]
        assert kinds == ["reasoning", "message", "function_call", "message", "reasoning"]


def test_one_response_is_kept_once_however_it_ends():
    for end, status in (
        (lambda framing: framing.end(ENDING), "completed"),
        (lambda framing: framing.broken(openai_errors.internal("x")), "failed"),
        (lambda framing: framing.broken(openai_errors.aborted()), "cancelled"),
        (lambda framing: framing.refusal(openai_errors.internal("x")), "failed"),
        (lambda framing: framing.whole([piece(Content("a"), reason="stop")], ENDING), "completed"),
        (lambda framing: None, "cancelled"),
    ):
        kept = []
        framing = responses(kept)
        end(framing)
        framing.left()
        assert [document["status"] for document in kept] == [status]


def test_errors_within_a_stream_are_the_surfaces():
    error = openai_errors.internal("no room")
    assert events(messages().broken(error)) == [{"type": "error", "error": {"type": "api_error", "message": "no room"}}]
    failed = events(responses().broken(error))[-1]
    assert (failed["type"], failed["response"]["error"]["message"]) == ("response.failed", "no room")
    assert json.loads(lines().broken(error)) == {"error": "no room"}


def test_times_that_never_came_are_nothing():
    document = json.loads(lines().end(ENDING))
    assert (document["total_duration"], document["prompt_eval_duration"], document["eval_duration"]) == (
        1500000000,
        500000000,
        0,
    )
