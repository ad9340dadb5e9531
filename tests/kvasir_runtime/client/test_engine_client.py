"""The client end of the socket: events reach their streams, and the end of the engine reaches everybody."""

import asyncio
import contextlib

import msgspec
import pytest
import zmq
import zmq.asyncio

from fakes.engine_facts import engine_facts
from kvasir_api.state import RuntimeState
from kvasir_runtime import wire
from kvasir_runtime.client.engine_client import EngineClient, EngineDeadError
from kvasir_runtime.client.event_queue import EventQueue
from kvasir_runtime.engine_reports import Progress

FACTS = engine_facts(block_size=16, num_blocks=4, max_batch_tokens=64, max_model_len=32)
READY = wire.Ready(FACTS)


class Engine:
    """The other end, played by the test."""

    def __init__(self, address: str) -> None:
        self.context = zmq.asyncio.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.SNDHWM, 0)  # a ROUTER drops what is above it
        self.socket.bind(address)
        self.client = b""

    async def hear(self) -> wire.ToEngine:
        self.client, payload = await asyncio.wait_for(self.socket.recv_multipart(), 60)
        return msgspec.msgpack.decode(payload, type=wire.ToEngine)

    async def say(self, message: wire.FromEngine | bytes) -> None:
        payload = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        await self.socket.send_multipart([self.client, payload])


@contextlib.asynccontextmanager
async def connected(tmp_path, **kwargs):
    address = f"ipc://{tmp_path}/engine"
    client = EngineClient(address, **kwargs)
    task = asyncio.create_task(client.run())
    await asyncio.sleep(0)  # it may connect before the engine binds
    engine = Engine(address)
    try:
        assert await engine.hear() == wire.Hello()
        yield client, engine
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        engine.context.destroy(linger=0)


def request(request_id):
    return wire.EngineRequest(request_id=request_id, prompt=(1, 2), sampling=wire.SamplingConfig(max_tokens=3))


def event(request_id, *tokens, reason=None):
    return wire.EngineOutput(request_id=request_id, token_ids=tokens, finish_reason=reason)


async def take(queue):
    return await asyncio.wait_for(queue.take(60), 60)


async def test_the_start_is_told_step_by_step(tmp_path):
    seen = []
    async with connected(tmp_path, on_progress=seen.append) as (client, engine):
        progress = Progress("loading", 0.5)
        await engine.say(progress)
        await engine.say(READY)
        assert await asyncio.wait_for(client.wait_ready(), 60) == FACTS
        assert seen == [progress]


async def test_a_packed_prompt_crosses_the_socket_once_and_the_salt_comes_back(tmp_path):
    async with connected(tmp_path) as (client, engine):
        await engine.say(wire.Ready(FACTS, b"secret"))
        await asyncio.wait_for(client.wait_ready(), 60)
        assert client.hash_salt == b"secret"
        ids = (1, 2**20, 7)
        whole = wire.EngineRequest(
            request_id="a", prompt=ids, packed_prompt=wire.packed_ids(ids), sampling=wire.SamplingConfig(max_tokens=3)
        )
        client.submit([whole], EventQueue())
        sent = (await engine.hear()).request
        assert sent.prompt == ()
        assert (sent.prompt_tokens, tuple(sent.prompt_ids())) == (3, ids)


async def test_events_of_one_step_reach_their_streams_in_one_wake_up(tmp_path):
    async with connected(tmp_path) as (client, engine):
        one, two = EventQueue(), EventQueue()
        client.submit([request("a"), request("b")], one)
        client.submit([request("c")], two)
        assert [(await engine.hear()).request.request_id for _ in range(3)] == ["a", "b", "c"]
        assert client.num_inflight == 3
        events = (event("a", 1), event("b", 2, 3), event("c", 4, reason="stop"), event("unknown", 5))
        await engine.say(wire.StepOutputs(events, RuntimeState(step=7)))
        assert await take(one) == [(0, events[0]), (1, events[1])]
        assert await take(two) == [(0, events[2])]
        assert client.state.step == 7
        assert client.num_inflight == 2


async def test_an_abort_is_sent_once_and_later_events_are_dropped(tmp_path):
    async with connected(tmp_path) as (client, engine):
        queue = EventQueue()
        client.submit([request("a"), request("b")], queue)
        client.abort("a")
        client.abort("a")
        client.abort("b", stopped=True)
        await engine.hear()
        await engine.hear()
        assert await engine.hear() == wire.Abort("a", "abort")
        assert await engine.hear() == wire.Abort("b", "stop")
        await engine.say(wire.StepOutputs((event("a", 1),), RuntimeState()))
        client.submit([request("c")], queue)
        await engine.hear()
        await engine.say(wire.StepOutputs((event("c", 2),), RuntimeState()))
        assert await take(queue) == [(0, event("c", 2))]


async def test_a_failure_ends_every_stream_with_its_words(tmp_path):
    async with connected(tmp_path) as (client, engine):
        queue = EventQueue()
        client.submit([request("a")], queue)
        await engine.hear()
        await engine.say(wire.EngineFailed("no memory"))
        ((_, last),) = await take(queue)
        assert (last.finish_reason, last.message) == ("error", "no memory")
        with pytest.raises(EngineDeadError, match="no memory"):
            client.submit([request("b")], queue)
        with pytest.raises(EngineDeadError, match="no memory"):
            await client.wait_ready()


async def test_what_is_not_understood_is_a_failure_not_a_crash(tmp_path):
    async with connected(tmp_path) as (client, engine):
        await engine.say(b"\xc1nonsense")
        with pytest.raises(EngineDeadError, match="cannot be decoded"):
            await asyncio.wait_for(client.wait_ready(), 60)


async def test_interrupted_streams_say_why_and_the_engine_forgets_them(tmp_path):
    async with connected(tmp_path) as (client, engine):
        queue = EventQueue()
        client.submit([request("a")], queue)
        client.interrupt("closing")
        await engine.hear()
        assert await engine.hear() == wire.Abort("a", "abort")
        assert [event.message for _, event in await take(queue)] == ["closing"]


async def test_a_burst_of_messages_is_read_to_the_end(tmp_path):
    async with connected(tmp_path) as (client, engine):
        queue = EventQueue()
        client.submit([request("a")], queue)
        await engine.hear()
        for number in range(2000):
            await engine.say(wire.StepOutputs((event("a", number),), RuntimeState(step=number)))
        tokens = []
        while len(tokens) < 2000:
            tokens += [token for _, item in await take(queue) for token in item.token_ids]
        assert tokens == list(range(2000))


async def test_a_channel_gathers_while_no_task_reads():
    queue = EventQueue()
    queue.put(0, event("a", 1))
    queue.put(1, event("b", 2))
    assert await queue.take(1) == [(0, event("a", 1)), (1, event("b", 2))]


async def test_a_channel_gives_nothing_after_a_while_and_none_when_left():
    queue = EventQueue()
    assert await queue.take(0.001) == []
    queue.put(0, event("a", 1))
    queue.leave()
    assert await queue.take(1) is None


async def test_what_is_announced_and_how_often_outputs_were_invalid_is_kept(tmp_path):
    failures = []
    async with connected(tmp_path, on_failure=lambda: failures.append(1)) as (client, engine):
        seen = []
        queue = EventQueue()
        for code, reason in (("model_output_invalid", "error"),) * 2 + (("", "error"), ("", "abort"), ("", "length")):
            client.submit([request("a")], queue)
            await engine.hear()
            output = wire.EngineOutput(request_id="a", finish_reason=reason, code=code)
            await engine.say(wire.StepOutputs((output,), RuntimeState(), expected_s=2.5))
            await take(queue)
            seen.append(client.invalid_in_a_row)
        assert seen == [1, 2, 2, 2, 0], "refusals and aborts are not counted"
        assert client.expected_s == 2.5
        await engine.say(wire.EngineFailed("it is over"))
        with pytest.raises(EngineDeadError, match="it is over"):
            await asyncio.wait_for(client.wait_ready(), 60)
        assert failures == [1]
