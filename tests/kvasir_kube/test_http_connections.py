"""Connections to many servers: kept, bounded, and none held up by a server that is silent."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from fakes.gateway import DEADLINE_S, until
from fakes.stub_runtime import StubRuntime
from kvasir_kube import http_sites
from kvasir_kube.state_reader import StateReader


class Scripted(asyncio.Protocol):
    """A server that answers each request with the given pieces; without any it is silent. `taken`: connections."""

    def __init__(self, pieces: list[bytes], taken: list[asyncio.BaseTransport]) -> None:
        self._pieces, self._taken = pieces, taken

    def connection_made(self, transport):
        self._transport = transport
        self._taken.append(transport)

    def data_received(self, data):
        for piece in self._pieces:
            self._transport.write(piece)


@contextlib.asynccontextmanager
async def scripted(
    *pieces: bytes, count: int = 1, taken: list[asyncio.Transport] | None = None
) -> AsyncIterator[list[str]]:
    """Base URLs of so many such servers. taken: gets their connections."""
    loop, taken = asyncio.get_running_loop(), [] if taken is None else taken
    servers = [await loop.create_server(lambda: Scripted(list(pieces), taken), "127.0.0.1", 0) for _ in range(count)]
    try:
        yield [f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
    finally:
        await asyncio.gather(*(http_sites.stop_accepting(server) for server in servers))
        for server in servers:
            server.close()
        for transport in taken:
            transport.abort()
        await asyncio.sleep(0)


def base(stub: StubRuntime) -> str:
    return f"http://127.0.0.1:{stub.ops_port}"


@pytest.fixture
async def pod() -> AsyncIterator[StubRuntime]:
    stub = await StubRuntime("good").start()
    yield stub
    await stub.stop()


def connections(stub: StubRuntime) -> int:
    """Open connections to the pod's ports."""
    return sum(len(runner.server.connections) for runner in stub._runners)


@pytest.mark.parametrize("most_open", [0, 20])
async def test_a_hundred_silent_pods_delay_no_healthy_one(pod, most_open):
    """Also where there are fewer connections than silent pods, once it is known which they are. None of these ends its
    connection before the healthy one was read."""
    taken = []
    async with scripted(count=100, taken=taken) as silent, StateReader(most_open=most_open) as reader:
        targets = {**{where: where for where in silent}, "good": base(pod)}

        async def read():
            reading = asyncio.create_task(reader.states(targets, deadline_s=2 * DEADLINE_S))
            try:
                before = pod.state_reads
                await until(lambda: bool(taken) and (not known or pod.state_reads > before), "the healthy one is read")
                while not reading.done():
                    while taken:
                        taken.pop().abort()
                    await asyncio.sleep(0.005)
            finally:
                reading.cancel()
                await asyncio.wait([reading])
            return set(reading.result())

        known = not most_open
        if most_open:
            await read()
            assert await reader.states({"good": targets["good"]}, deadline_s=DEADLINE_S)
            known = True
        for _ in range(3):
            assert await read() == {"good"}


async def test_no_more_connections_are_open_than_may_be(pod):
    """Pods beyond the bound are read one after another."""
    stubs = [await StubRuntime(f"p{number}").start() for number in range(12)]
    targets = {stub.name: base(stub) for stub in stubs}
    async with StateReader(most_open=4) as reader:
        for _ in range(3):
            assert set(await reader.states(targets, deadline_s=60.0)) == set(targets)
            assert sum(connections(stub) for stub in stubs) <= 4
    await asyncio.gather(*(stub.stop() for stub in stubs))


async def test_a_pod_is_read_again_and_again_on_one_connection(pod):
    seen = []
    async with StateReader() as reader:
        for _ in range(5):
            await reader.states({"good": base(pod)}, deadline_s=60.0)
            seen.append(connections(pod))
    assert (seen, pod.state_reads) == ([1] * 5, 5)


async def test_a_pod_that_ended_the_connection_is_read_on_another(pod):
    """As a server does that waits a few seconds for the next request: the reading of that moment is not lost."""
    async with StateReader() as reader:
        assert await reader.states({"good": base(pod)}, deadline_s=60.0)
        for runner in pod._runners:
            for connection in list(runner.server.connections):
                connection.transport.abort()
        assert await reader.states({"good": base(pod)}, deadline_s=60.0)


@pytest.mark.parametrize(
    "response",
    [
        b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11\r\n{"running":    7}\r\n0\r\n\r\n',
        b'HTTP/1.0 200 OK\r\nContent-Length: 17\r\n\r\n{"running":    7}',
        b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 17\r\n\r\n{"running":    7}',
    ],
)
async def test_every_framing_of_an_answer_is_read(response):
    pieces = [response[index : index + 7] for index in range(0, len(response), 7)]
    async with scripted(*pieces) as (target,), StateReader() as reader:
        for _ in range(2):
            assert (await reader.states({"pod": target}, deadline_s=60.0))["pod"].running == 7


@pytest.mark.parametrize(
    "response",
    [
        b"\x00\x01\x02",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}{}",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 400_000,
        b"HTTP/1.1 302 Found\r\nLocation: /other\r\nContent-Length: 2\r\n\r\n{}",
    ],
    ids=["no-http", "more-than-requested", "endless-head", "redirect"],
)
async def test_an_answer_that_is_not_sound_is_none(response):
    async with scripted(response) as (target,), StateReader() as reader:
        assert await reader.states({"pod": target}, deadline_s=2.0) == {}
