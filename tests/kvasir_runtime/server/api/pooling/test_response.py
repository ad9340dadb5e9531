"""The answer with vectors at the level of ASGI: windows, order, errors of the engine, clients that leave."""

import asyncio
import json
from collections import deque

import pytest

from fakes import tiny_tokenizer
from kvasir_runtime.client.engine_client import EngineDeadError
from kvasir_runtime.server.api.pooling.prepare import PooledRequest
from kvasir_runtime.server.api.pooling.response import PooledResponse
from kvasir_runtime.server.output_collector import ServingContext
from kvasir_runtime.server.request_registry import RequestRegistry
from kvasir_runtime.wire import EngineOutput, EngineRequest, PoolingConfig, SamplingConfig


class Client:
    """Stands for the engine: it answers the latest prompt first, or as the test says."""

    def __init__(self, *, says=None, gone=False):
        self.failure = None
        self.aborted = []
        self.open = deque()
        self.asked = asyncio.Event()
        self.most = 0
        self._says = says
        self._gone = gone

    def submit(self, requests, queue):
        if self._gone:
            raise EngineDeadError("it is gone")
        self.open.extend(requests)
        self.asked.set()
        self.most = max(self.most, len(self.open))
        if self._says is None:
            asyncio.get_running_loop().call_soon(self._answer, queue)
        else:
            queue.put(0, self._says)

    def abort(self, request_id, *, stopped=False):
        self.aborted.append(request_id)

    def _answer(self, queue):
        while self.open:
            request = self.open.pop()
            vector = bytes([request.prompt[0]] * 4)
            event = EngineOutput(
                request_id=request.request_id, finish_reason="stop", pooled=vector, cached_tokens=1, queue_s=0.0
            )
            queue.put(0, event)


class Meter:
    def __init__(self):
        self.ends = []

    def ended(self, sequence):
        self.ends.append(sequence)


class Wire:
    def __init__(self):
        self.sent = []
        self.hung_up = asyncio.Event()

    async def receive(self):
        await self.hung_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def json(self):
        return json.loads(self.sent[1]["body"])


async def run(client, *, count=5, window=2, hang_up=False, abort=""):
    wire, meter, running, ended = Wire(), Meter(), RequestRegistry(), []
    pooling = PoolingConfig(kind="last")
    requests = [
        EngineRequest(request_id=f"e-{n}", prompt=(n, 1), sampling=SamplingConfig(max_tokens=1), pooling=pooling)
        for n in range(count)
    ]

    async def finish(events):
        return json.dumps([event.pooled[0] for event in events]).encode()

    answer = PooledResponse(
        PooledRequest(answer_id="e", requests=tuple(requests), write=lambda *_: b""),
        ServingContext(
            client=client, tokenizer=tiny_tokenizer.tokenizer(), metrics=meter, registry=running, clock=lambda: 1.0
        ),
        finish,
        model="m",
        window=window,
        arrived=0.0,
        on_end=lambda: ended.append(1),
    )
    task = asyncio.create_task(
        answer({"path": "/v1/embeddings", "state": {"request_id": "theirs"}}, wire.receive, wire.send)
    )
    if hang_up or abort:
        await client.asked.wait()
    if hang_up:
        wire.hung_up.set()
    if abort:
        assert running.abort(abort) == 1
    await asyncio.wait_for(task, 60)
    assert ended == [1]
    assert running.abort("e") == 0
    return wire, meter, answer


async def test_vectors_come_in_order_through_a_window():
    client = Client()
    wire, meter, answer = await run(client, count=7, window=3)
    assert (wire.status, wire.json) == (200, [0, 1, 2, 3, 4, 5, 6])
    assert client.most == 3
    assert client.aborted == []
    assert [ended.reason for ended in meter.ends] == ["stop"] * 7
    assert {(ended.prompt_tokens, ended.cached_tokens, ended.generation_tokens) for ended in meter.ends} == {(2, 1, 0)}
    assert (answer.trace.prompt_tokens, answer.trace.cached_tokens, answer.trace.reason) == (14, 7, "stop")


@pytest.mark.parametrize(
    ("says", "status", "code", "reason"),
    [
        (EngineOutput(request_id="e-0", finish_reason="error", message="it broke"), 500, "internal_error", "error"),
        (
            EngineOutput(request_id="e-0", finish_reason="error", message="not finite", code="model_output_invalid"),
            500,
            "model_output_invalid",
            "error",
        ),
        (EngineOutput(request_id="e-0", finish_reason="abort", message="leaving"), 503, "engine_failed", "error"),
    ],
)
async def test_what_the_engine_says_of_one_prompt_ends_all(says, status, code, reason):
    client = Client(says=says)
    wire, meter, _ = await run(client)
    assert (wire.status, wire.json["error"]["code"]) == (status, code)
    assert says.message in wire.json["error"]["message"]
    assert client.aborted == ["e-0", "e-1"]
    assert [ended.reason for ended in meter.ends] == [reason, reason]


async def test_an_engine_that_is_gone_is_a_503():
    wire, meter, _ = await run(Client(gone=True))
    assert [ended.reason for ended in meter.ends] == ["error", "error"]
    assert (wire.status, wire.json["error"]["code"]) == (503, "engine_failed")


async def test_a_client_that_leaves_has_its_prompts_aborted():
    client = Client(says=EngineOutput(request_id="e-9"))
    wire, meter, answer = await run(client, hang_up=True)
    assert wire.sent == []
    assert client.aborted == ["e-0", "e-1"]
    assert [ended.reason for ended in meter.ends] == ["abort", "abort"]
    assert answer.trace.reason == "abort"


@pytest.mark.parametrize("name", ["e", "theirs"])
async def test_it_is_aborted_by_its_id_and_by_its_clients(name):
    client = Client(says=EngineOutput(request_id="e-9"))
    wire, meter, _ = await run(client, abort=name)
    assert wire.json["error"]["code"] == "request_aborted"
    assert client.aborted == ["e-0", "e-1"]
    assert [ended.reason for ended in meter.ends] == ["abort", "abort"]
