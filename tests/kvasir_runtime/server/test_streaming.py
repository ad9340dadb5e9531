"""Answers at the level of ASGI: what is sent when the engine errs, when nobody reads, when the client is gone."""

import asyncio

import pytest

from fakes import tiny_tokenizer
from kvasir_runtime.client.engine_client import EngineDeadError
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import TokenLabels
from kvasir_runtime.server.api.openai.serialize import OpenAiSerializer
from kvasir_runtime.server.output_collector import ServingContext
from kvasir_runtime.server.streaming import GenerationResponse
from kvasir_runtime.wire import EngineOutput, EngineRequest, SamplingConfig

TOKENIZER = tiny_tokenizer.tokenizer()
STREAMED, WHOLE = True, False


class Client:
    """Stands for the engine: events are given by the test."""

    def __init__(self, *, gone=False):
        self.aborted = []
        self.failure = None
        self.interrupted = False
        self.submitted = []
        self.queue = None
        self._gone = gone

    def submit(self, requests, queue, indices=None):
        if self._gone:
            raise EngineDeadError("it is gone")
        self.queue = queue
        self.submitted.append(list(indices))

    def abort(self, request_id, *, stopped=False):
        self.aborted.append((request_id, stopped))


class Meter:
    def __init__(self):
        self.ends = []

    def first_token(self, since_arrival_s): ...

    def tokens(self, count, gap_s): ...

    def ended(self, sequence):
        self.ends.append(sequence.reason)

    def answered(self, num_choices, longest_tokens): ...


class Wire:
    """The client's side: collects what is sent, hangs up or stops reading on demand."""

    def __init__(self, *, stuck_after=10**9):
        self.sent = []
        self.hung_up = asyncio.Event()
        self.stuck_after = stuck_after

    async def receive(self):
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        if len(self.sent) >= self.stuck_after:
            raise TimeoutError
        self.sent.append(message)

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent[1:])


def answer(stream, client, meter, ended, n=1, **limits):
    requests = tuple(
        EngineRequest(request_id=f"r{index}", prompt=(5,), sampling=SamplingConfig(max_tokens=9)) for index in range(n)
    )
    job = GenerationRequest(
        answer_id="a",
        model="m",
        chat=False,
        stream=stream,
        include_usage=True,
        requests=requests,
        num_prompts=1,
        prompt_tokens=1,
        stops=(),
        include_stop=False,
    )
    return GenerationResponse(
        job,
        OpenAiSerializer(job, 0, "f", TokenLabels(TOKENIZER)),
        ServingContext(client=client, tokenizer=TOKENIZER, metrics=meter, clock=lambda: 1.0, **limits),
        arrived=0.0,
        on_end=lambda: ended.append(1),
    )


def event(index, text="", reason=None, message=""):
    ids = tuple(TOKENIZER.encoder.encode(text).ids)
    return index, EngineOutput(request_id=f"r{index}", token_ids=ids, finish_reason=reason, message=message)


async def run(stream, events, *, wire=None, client=None, n=1, hang_up=False, **kwargs):
    wire, client, meter, ended = wire or Wire(), client or Client(), Meter(), []
    made = answer(stream, client, meter, ended, n, **kwargs)
    task = asyncio.create_task(made({"state": {}}, wire.receive, wire.send))
    await asyncio.sleep(0)
    for index, item in events:
        client.queue.put(index, item)
        await asyncio.sleep(0.001)
    if hang_up:
        wire.hung_up.set()
    await asyncio.wait_for(task, 60)
    assert ended == [1], "the end is told exactly once"
    return wire, client, meter


@pytest.mark.parametrize("stream", [STREAMED, WHOLE])
async def test_an_engine_that_is_gone_is_503(stream):
    wire, _, _ = await run(stream, [], client=Client(gone=True))
    assert wire.status == 503
    assert b"it is gone" in wire.body


@pytest.mark.parametrize("stream", [STREAMED, WHOLE])
async def test_an_error_before_the_first_token_has_a_status(stream):
    wire, _, meter = await run(stream, [event(0, reason="error", message="no room")])
    assert wire.status == 500
    assert b"no room" in wire.body
    assert meter.ends == ["error"]


@pytest.mark.parametrize("stream", [STREAMED, WHOLE])
async def test_an_output_of_the_model_that_is_not_finite_has_its_own_code(stream):
    output = EngineOutput(request_id="r0", finish_reason="error", message="not finite", code="model_output_invalid")
    wire, _, _ = await run(stream, [(0, output)])
    assert wire.status == 500
    assert b'"message":"not finite"' in wire.body
    assert b'"type":"server_error"' in wire.body
    assert b'"code":"model_output_invalid"' in wire.body


async def test_an_error_after_it_is_an_event_without_done_and_frees_the_other_choices():
    events = [event(0, "one"), event(1, "two"), event(0, reason="error", message="broken")]
    wire, client, meter = await run(STREAMED, events, n=2)
    assert wire.status == 200
    assert wire.body.endswith(b'"code":"internal_error"}}\n\n')
    assert b"[DONE]" not in wire.body
    assert wire.sent[-1]["more_body"] is False
    assert ("r1", False) in client.aborted
    assert meter.ends == ["error", "error"]


@pytest.mark.parametrize("stream", [STREAMED, WHOLE])
async def test_a_client_that_hangs_up_is_an_abort(stream):
    _, client, meter = await run(stream, [event(0, "one")], hang_up=True)
    assert client.aborted == [("r0", False)]
    assert meter.ends == ["abort"]


async def test_a_client_that_reads_nothing_for_too_long_is_given_up():
    wire = Wire(stuck_after=2)
    _, client, meter = await run(STREAMED, [event(0, "one"), event(0, "two")], wire=wire)
    assert client.aborted == [("r0", False)]
    assert meter.ends == ["abort"]


async def test_a_slow_reader_gets_what_gathered_in_one_piece():
    wire = Wire()
    _, client, _ = await run(STREAMED, [event(0, "a")], wire=wire, hang_up=True)
    client = Client()
    made = answer(STREAMED, client, Meter(), [])
    task = asyncio.create_task(made({"state": {}}, wire.receive, wire.send))
    wire.hung_up.clear()
    await asyncio.sleep(0)
    for item in [event(0, "x"), event(0, "y"), event(0, "z", reason="length")]:
        client.queue.put(*item)
    wire.sent.clear()
    await asyncio.wait_for(task, 60)
    assert len(wire.sent) == 3, "start, all text, the end"
    assert wire.sent[1]["body"].count(b"data: ") == 3


async def test_who_waits_long_gets_a_sign_of_life():
    wire = Wire()
    made = answer(STREAMED, client := Client(), Meter(), [], keep_alive_s=0.01)
    task = asyncio.create_task(made({"state": {}}, wire.receive, wire.send))
    async with asyncio.timeout(60):
        while len(wire.sent) <= 2:  # noqa: ASYNC110 - a look at plain data
            await asyncio.sleep(0.005)
    assert wire.status == 200
    assert wire.sent[1]["body"] == b": waiting\n\n"
    client.queue.put(*event(0, "x", reason="length"))
    await asyncio.wait_for(task, 60)
    assert wire.body.endswith(b"data: [DONE]\n\n")


def handed_back(index, message=""):
    ended = EngineOutput(request_id=f"r{index}", finish_reason="abort", code="draining", message=message)
    return index, ended


@pytest.mark.parametrize("stream", [STREAMED, WHOLE])
async def test_what_waits_is_handed_back_before_a_byte_was_sent(stream):
    wire, client, meter = await run(stream, [handed_back(0)], n=2)
    assert (wire.status, dict(wire.sent[0]["headers"])[b"retry-after"]) == (503, b"1")
    assert b'"code":"draining"' in wire.body
    assert client.aborted == [("r0", False), ("r1", False)]
    assert meter.ends == ["abort", "abort"]


@pytest.mark.parametrize("stream", [STREAMED, WHOLE])
async def test_a_choice_that_waits_beside_one_that_runs_waits_again(stream):
    events = [event(0, "one "), handed_back(1), event(1, "two"), event(0, "", "length"), event(1, "", "length")]
    wire, client, _ = await run(stream, events, n=2)
    assert wire.status == 200
    assert client.submitted == [[0, 1], [1]]
    tokens = sum(len(item.token_ids) for _, item in events)
    assert f'"completion_tokens":{tokens}'.encode() in wire.body


@pytest.mark.parametrize("stream", [STREAMED, WHOLE])
async def test_an_engine_that_is_gone_before_a_choice_waits_again_ends_the_answer_once(stream):
    class Dying(Client):
        def submit(self, requests, queue, indices=None):
            super().submit(requests, queue, indices)
            self.failure, self._gone = "it is gone", True

    wire, client, meter = await run(stream, [event(0, "one "), handed_back(1)], client=Dying(), n=2)
    assert [message["type"] for message in wire.sent].count("http.response.start") == 1
    assert wire.status == (200 if stream else 503)
    assert (b"one " in wire.body) == stream
    assert b"it is gone" in wire.body
    assert b'"code":"engine_failed"' in wire.body
    assert wire.sent[-1].get("more_body", False) is False
    assert client.submitted == [[0, 1]]
    assert meter.ends == ["error", "error"]


async def test_at_the_deadline_a_stream_sends_what_came_before_its_error():
    client = Client()
    client.interrupted = True
    both = [event(0, "one "), event(0, "two "), handed_back(0, "it is over")]

    class AllAtOnce(list):
        def __iter__(self):
            for index, item in both[:2]:
                client.queue.put(index, item)
            return iter(both[2:])

    wire, _, meter = await run(STREAMED, AllAtOnce(), client=client)
    assert wire.body.index(b"one ") < wire.body.index(b"two ") < wire.body.index(b"it is over")
    assert b'"code":"draining"' in wire.body
    assert b"continuation" not in wire.body, "there is no key"
    assert meter.ends == ["abort"]


async def test_a_whole_answer_at_the_deadline_may_be_had_elsewhere():
    client = Client()
    client.interrupted = True
    wire, _, _ = await run(WHOLE, [event(0, "one "), handed_back(0, "it is over")], client=client)
    assert wire.status == 503
    assert b'"code":"draining"' in wire.body
