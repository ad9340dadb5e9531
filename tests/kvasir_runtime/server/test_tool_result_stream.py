"""Results that are handed into an answer: when the engine is told, what the client sees, how an answer ends."""

import asyncio
import json

import pytest

from fakes import tiny_tokenizer
from kvasir_runtime.client.engine_client import EngineDeadError
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.logprobs import TokenLabels
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.parsing.formats import ParserNames
from kvasir_runtime.frontend.tool_results import ToolResult
from kvasir_runtime.server.api.openai.serialize import OpenAiSerializer
from kvasir_runtime.server.output_collector import ServingContext
from kvasir_runtime.server.streaming import GenerationResponse
from kvasir_runtime.wire import EngineOutput

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }};{% endfor %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)
TOOLS = [{"type": "function", "function": {"name": "clock"}}, {"type": "function", "function": {"name": "sun"}}]
CALL = '<tool_call>{"name": "clock"}</tool_call>'
SUN = '<tool_call>{"name": "sun"}</tool_call>'
BLOCK = "\n<tool>noon\n<assistant>"
SERVED = ModelProfile(
    names=("m",), tokenizer=tiny_tokenizer.tokenizer(TEMPLATE), max_context=400, parsers=ParserNames("hermes", "qwen3")
)


def ids(text):
    return tuple(SERVED.tokenizer.encoder.encode(text).ids)


def job(**fields):
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "tools": TOOLS,
        "stream": True,
        "async_tool_calls": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 100,
        **fields,
    }
    return prepare.from_bytes(json.dumps(body).encode(), SERVED, chat=True)


class Client:
    """Stands for the engine."""

    failure = None

    def __init__(self):
        self.submitted, self.injected, self.aborted = [], [], []

    def submit(self, requests, queue, indices=None):
        if self.failure is not None:
            raise EngineDeadError(self.failure)
        self.submitted += requests
        self.queue = queue

    def inject(self, request_id, token_ids):
        self.injected.append((request_id, token_ids))

    def abort(self, request_id, *, stopped=False):
        self.aborted.append(request_id)


class Meter:
    def __init__(self):
        self.ends = []

    def first_token(self, since_arrival_s): ...

    def tokens(self, count, gap_s): ...

    def ended(self, sequence):
        self.ends.append(sequence.reason)

    def answered(self, num_choices, longest_tokens): ...


class Stream:
    """One answer under test. now: the clock."""

    def __init__(self, **fields):
        self.client, self.meter, self.sent, self.now = Client(), Meter(), [], 1.0
        request = job(**fields)
        context = ServingContext(
            client=self.client,
            tokenizer=SERVED.tokenizer,
            metrics=self.meter,
            clock=lambda: self.now,
            keep_alive_s=0.01,
            tool_result_timeout_s=60.0,
        )
        serializer = OpenAiSerializer(request, 0, "f", TokenLabels(SERVED.tokenizer))
        self.answer = GenerationResponse(request, serializer, context, arrived=0.0, on_end=lambda: None)
        self.task = asyncio.create_task(self.answer({"state": {}}, asyncio.Event().wait, self.send))

    async def send(self, message):
        self.sent.append(message)

    async def says(self, text="", reason=None, injected=0):
        await asyncio.sleep(0)
        request = self.client.submitted[-1].request_id
        event = EngineOutput(request_id=request, token_ids=ids(text), finish_reason=reason, injected=injected)
        self.client.queue.put(0, event)
        await asyncio.sleep(0.001)

    async def result(self, content="noon", call=-1):
        results = [ToolResult(tool_call_id=self.calls()[call][0], content=content)]
        accepted = await self.answer.collector.add_results(results)
        await asyncio.sleep(0.001)
        return accepted

    def chunks(self):
        body = b"".join(message.get("body", b"") for message in self.sent[1:]).decode()
        lines = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: ")]
        return [json.loads(line) for line in lines if line != "[DONE]"]

    def deltas(self):
        return [choice["delta"] for chunk in self.chunks() for choice in chunk["choices"]]

    def content(self):
        return "".join(delta.get("content") or "" for delta in self.deltas())

    def calls(self):
        found = [call for delta in self.deltas() for call in delta.get("tool_calls", ())]
        return [(call["id"], call["function"]["name"]) for call in found if "id" in call]

    def reason(self):
        return [choice["finish_reason"] for chunk in self.chunks() for choice in chunk["choices"]][-1]

    def usage(self):
        return self.chunks()[-1]["usage"]


async def test_a_result_reaches_a_running_answer_between_its_tokens():
    stream = Stream()
    await stream.says(f"{CALL}\nI go ")
    assert [name for _, name in stream.calls()] == ["clock"], "the call is told while the model goes on"
    accepted = await stream.result()
    assert accepted == (stream.calls()[0][0],)
    request = stream.client.submitted[0]
    assert stream.client.injected == [(request.request_id, ids(BLOCK))]
    await stream.says("on.")
    await stream.says(" It is noon.", injected=len(ids(BLOCK)))
    await stream.says("", "stop")
    await asyncio.wait_for(stream.task, 60)
    assert stream.content() == "\nI go on. It is noon."
    assert (stream.reason(), stream.meter.ends, len(stream.client.submitted)) == ("stop", ["stop"], 1)
    assert stream.usage()["prompt_tokens"] == len(request.prompt) + len(ids(BLOCK))


async def test_nothing_is_handed_in_within_a_call_or_within_thoughts():
    stream = Stream()
    await stream.says(CALL.removesuffix("</tool_call>"))
    await stream.result(call=0)
    assert stream.client.injected == [], "the call is told, and its closing tag is missing"
    await stream.says('</tool_call><tool_call>{"name": ')
    assert stream.client.injected == []
    await stream.says('"sun"}</tool_call>')
    assert len(stream.client.injected) == 1
    await stream.says("<think>hm", injected=len(ids(BLOCK)))
    await stream.result(call=1)
    assert len(stream.client.injected) == 1
    await stream.says(" so</think>")
    assert len(stream.client.injected) == 2
    await stream.says("Noon.", "stop", injected=len(ids(BLOCK)))
    await asyncio.wait_for(stream.task, 60)
    assert (stream.content(), stream.reason()) == ("Noon.", "stop")
    assert "".join(delta.get("reasoning", "") for delta in stream.deltas()) == "hm so"
    assert [name for _, name in stream.calls()] == ["clock", "sun"]


async def test_an_answer_whose_turn_ended_goes_on_in_its_next_turn():
    stream = Stream()
    await stream.says(CALL, "stop")
    assert not stream.task.done()
    await stream.result()
    first, second = stream.client.submitted
    assert SERVED.tokenizer.decode(second.prompt) == SERVED.tokenizer.decode(first.prompt) + CALL + BLOCK
    assert second.sampling.max_tokens == 100 - len(ids(CALL))
    await stream.says("Noon.", "stop")
    await asyncio.wait_for(stream.task, 60)
    assert (stream.content(), stream.reason(), stream.meter.ends) == ("Noon.", "stop", ["stop"])


async def test_an_engine_that_is_gone_before_the_next_turn_is_an_error_in_the_stream():
    stream = Stream()
    await stream.says(CALL, "stop")
    stream.client.failure = "it is gone"
    await stream.result()
    await asyncio.wait_for(stream.task, 60)
    assert [message["type"] for message in stream.sent].count("http.response.start") == 1
    assert stream.chunks()[-1]["error"]["code"] == "engine_failed"
    assert stream.chunks()[-1]["error"]["message"] == "it is gone"
    assert stream.meter.ends == ["error"]


async def test_what_the_model_did_not_read_before_its_end_opens_the_next_turn():
    stream = Stream()
    await stream.says(CALL)
    await stream.result()
    assert len(stream.client.injected) == 1
    await stream.says(" Well.", "stop")
    assert len(stream.client.submitted) == 2
    await stream.says("Noon.", "stop")
    await asyncio.wait_for(stream.task, 60)
    assert stream.content() == " Well.Noon."


async def test_no_request_waits_for_ever():
    stream = Stream()
    await stream.says(CALL, "stop")
    stream.now += 61
    await asyncio.wait_for(stream.task, 60)
    assert (stream.reason(), stream.meter.ends) == ("tool_calls", ["stop"])
    with pytest.raises(Refused) as caught:
        await stream.result()
    assert caught.value.error.status == 404


@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_an_answer_without_calls_just_ends(reason):
    stream = Stream()
    await stream.says("Yes.", reason)
    await asyncio.wait_for(stream.task, 60)
    assert (stream.content(), stream.reason()) == ("Yes.", reason)


async def test_results_that_cannot_be_taken_are_refused_and_may_come_again():
    stream = Stream()
    await stream.says(CALL)
    with pytest.raises(Refused) as caught:
        await stream.answer.collector.add_results([ToolResult(tool_call_id="other", content="x")])
    assert caught.value.error.param == "results[0].tool_call_id"
    with pytest.raises(Refused) as caught:
        await stream.result("x" * 350)
    assert (caught.value.error.status, caught.value.error.code) == (400, "context_length_exceeded")
    await stream.result()
    with pytest.raises(Refused) as caught:
        await stream.result()
    assert caught.value.error.code == "invalid_value"
    stream.task.cancel()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"stream": False, "stream_options": None}, "stream true"),
        ({"n": 2}, "n 1"),
        ({"tools": []}, "tools"),
        ({"tool_choice": "required"}, "tool_choice auto"),
        ({"parallel_tool_calls": False}, "parallel_tool_calls"),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "strict"),
        ({"response_format": {"type": "json_object"}}, "form"),
        ({"guided_regex": "a+"}, "form"),
        ({"structured_outputs": {"json_object": True}}, "form"),
    ],
)
def test_what_cannot_be_interrupted_is_refused(fields, says):
    with pytest.raises(Refused) as caught:
        job(**fields)
    assert caught.value.error.param == "async_tool_calls"
    assert says in caught.value.error.message


def test_it_is_off_unless_requested():
    assert job(async_tool_calls=False).tool_results is None
    assert job().tool_results is not None


async def test_a_call_is_told_when_it_is_complete_and_all_at_once():
    stream = Stream()
    await stream.says('<tool_call>{"name": "clock", "arguments": {"a"')
    assert stream.calls() == []
    await stream.says(": 1}}")
    (call,) = [call for delta in stream.deltas() for call in delta.get("tool_calls", ())]
    assert call["function"] == {"name": "clock", "arguments": '{"a": 1}'}
    await stream.says('</tool_call> <tool_call>{"name": "sun", "arguments": {"b": x}}')
    assert stream.calls() == [(call["id"], "clock")]
    assert stream.content() == ' <tool_call>{"name": "sun", "arguments": {"b": x}}'
    stream.task.cancel()
