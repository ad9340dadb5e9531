"""Streams that wait for a replica through the real Envoy, our picker and our relay: what clients get meanwhile."""

import asyncio
import json

import aiohttp
import openai
import pytest
import pytest_asyncio

from fakes.gateway import DEADLINE_S, gateway, grant, until
from fakes.stub_runtime import stub_runtimes
from kvasir_api import names
from kvasir_api.state import QueueBounds
from kvasir_gateway.envoy.bootstrap import INNER_SOCKET
from kvasir_gateway.hold_queue import HoldLimits

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("gateway-relay")]
HELD = f": {names.COMMENT_HELD} ".encode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front():
    async with gateway(hold=HoldLimits(max_requests=100, max_wait_s=120.0), relay=True) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def pods():
    async with stub_runtimes(2) as stubs:
        yield stubs


async def asleep(front, name):
    """A service without replicas, for which the relay gets requests."""
    front.objects.serve(name)

    async def relayed():
        try:
            async with asyncio.timeout(3), streaming(front, name) as response:
                return (await response.content.readline()).startswith(HELD)
        except TimeoutError:
            return False  # the picker held it, which did not know of the relay yet

    await until(relayed, "requests for it wait at the relay")
    await until(lambda: holds(front, name, 0), "that one has left")


async def holds(front, name, number):
    return (await front.demand(name)).held == number


def streaming(front, name, path="/v1/chat/completions", **headers):
    return front.client.post(front.url + path, json={"model": name, "stream": True}, headers=headers)


async def waits_at(response):
    """What the next comment says."""
    line = await response.content.readline()
    assert line.startswith(HELD), line
    assert await response.content.readline() == b"\n"
    return json.loads(line.removeprefix(HELD))


async def test_a_stream_that_waits_is_told_its_place_and_then_goes_on(front, pods):
    await asleep(front, "told")
    async with streaming(front, "told") as first, streaming(front, "told", authorization="Bearer b") as second:
        assert (first.status, first.headers["content-type"]) == (200, "text/event-stream")
        found = [await waits_at(response) for response in (first, second)]
        assert sorted(one["place"] for one in found) == [1, 2] or found[0]["place"] == 1
        assert {one["phase"] for one in found} == {"scale"}
        front.objects.serve("told", pods[0])
        for response in (first, second):
            rest = await response.read()
            assert rest.endswith(pods[0].whole())
            assert "x-request-id" in response.headers
    sent = pods[0].seen[-1].headers
    assert sent[names.HEADER_RELAYED]
    assert await holds(front, "told", 0)


async def test_the_openai_client_streams_through_a_wait(front, pods):
    await asleep(front, "client")
    async with openai.AsyncOpenAI(base_url=f"{front.url}/v1", api_key="k", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model="client", messages=[{"role": "user", "content": "x"}], stream=True
        )
        front.objects.serve("client", pods[0])
        assert len([chunk async for chunk in stream]) == pods[0].tokens


async def test_what_takes_less_than_the_quiet_time_keeps_its_own_head(pods):
    """Which is longer here than a busy machine takes."""
    async with gateway(hold=HoldLimits(max_requests=100, max_wait_s=120.0)) as front:
        front.relay_quiet_s = DEADLINE_S
        await front.start_relay()
        front.objects.serve("quick")
        await until(lambda: listed(front, "quick"), "it is known")
        asked = asyncio.create_task(streaming(front, "quick").__aenter__())
        await until(lambda: holds(front, "quick", 1), "it waits")
        front.objects.serve("quick", pods[0])
        async with await asked as response:
            assert (await response.read(), response.headers["x-pod"]) == (pods[0].whole(), pods[0].name)
        assert names.HEADER_RELAYED in pods[0].seen[-1].headers, "it waited at the relay"


async def listed(front, name):
    async with front.client.get(f"{front.url}/v1/models/{name}") as response:
        return response.status == 200


@pytest.mark.parametrize(
    ("path", "begin"), [("/v1/chat/completions", b"data: "), ("/v1/messages", b"event: error\ndata: ")]
)
async def test_a_refusal_behind_a_wait_is_the_last_event(front, pods, path, begin):
    name = f"refused{path.count('/')}"
    await asleep(front, name)
    pods[0].failure = (401, b'{"error": {"message": "no key", "code": "invalid_api_key"}}')
    async with streaming(front, name, path) as response:
        await waits_at(response)
        front.objects.serve(name, pods[0])
        assert (await response.read()).split(b"\n\n")[-2] == begin + pods[0].failure[1]


async def test_a_client_that_leaves_the_relay_waits_no_longer(front, pods):
    await asleep(front, "leaves")
    response = await streaming(front, "leaves").__aenter__()
    await waits_at(response)
    response.close()
    await until(lambda: holds(front, "leaves", 0), "its place is free")


async def test_streams_that_wait_outlive_their_picker(pods):
    """Whose clients have a status already: an error after it is one that they do not try again."""
    async with gateway(hold=HoldLimits(max_requests=100, max_wait_s=120.0), relay=True) as front:
        await asleep(front, "outlives")
        resumes = {names.HEADER_RESUME: "1"}
        async with streaming(front, "outlives") as told, streaming(front, "outlives", **resumes) as resumed:
            for response in (told, resumed):
                await waits_at(response)
            await front.stop_picker()
            front.start_picker()
            await until(front.is_ready, "the next picker is ready")
            front.objects.serve("outlives", pods[0])
            for response in (told, resumed):
                assert (await response.read()).endswith(pods[0].whole())


async def test_a_replica_that_fails_behind_a_wait_leaves_no_whole_answer(front, pods):
    await asleep(front, "fails")
    async with streaming(front, "fails") as response:
        await waits_at(response)
        pods[0].hold_tokens = asyncio.Event()
        front.objects.serve("fails", pods[0])
        while not (line := await response.content.readline()).startswith(b"data:"):
            assert line.startswith((b":", b"\n"))
        await pods[0].kill()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_clients_that_have_all_connections_leave_the_relay_its_own(pods):
    """The relay's connections take none of the clients', and give none back."""
    async with gateway(relay=True, max_connections=2) as running:
        running.objects.serve("tiny", pods[0])
        await until(lambda: running.has_ready("tiny", 1), "tiny")
        idle = []

        async def answers():
            idle.append(await asyncio.open_connection("127.0.0.1", running.port))
            reader, writer = idle[-1]
            try:
                writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
                return (await reader.readline()).startswith(b"HTTP/1.1 200")
            except ConnectionError:
                return False

        await until(answers, "Envoy has taken the first of two connections")

        async def resumed():
            try:
                async with streaming(running, "tiny", **{names.HEADER_RESUME: "1"}) as response:
                    return (response.status, await response.read()) == (200, pods[0].whole())
            except aiohttp.ClientConnectionError:
                return False  # the end of the connection before is not known yet

        for _ in range(3):
            await until(resumed, "it passes the relay")
        for _ in range(3):
            _, inner = await asyncio.open_unix_connection(str(running.directory / INNER_SOCKET))
            inner.close()
            await inner.wait_closed()
        await until(answers, "the second of two connections")
        assert [await answers() for _ in range(3)] == [False] * 3
        for _, writer in idle:
            writer.close()


async def test_without_a_relay_streams_wait_in_silence(front, pods):
    await asleep(front, "silent")
    await front.stop_relay()

    tasks = []

    async def waits():
        """Before, it is refused: the picker still believes in the relay."""
        if not tasks or tasks[-1].done():
            assert not tasks or tasks[-1].result()[0] == 503
            tasks.append(asyncio.create_task(front.post("silent", stream=True)))
        return await holds(front, "silent", 1)

    await until(waits, "the picker holds it itself")
    front.objects.serve("silent", pods[0])
    assert (await tasks[-1])[:2] == (200, pods[0].whole())
    await front.start_relay()


async def test_a_tenants_stream_counts_once_on_its_way_through_the_relay(front, pods):
    """Both listeners see it: with its key, but with one count, one set of headers and one line in the audit log."""
    pod = pods[0]
    front.objects.serve("limited", pod)
    await until(lambda: front.routes("limited"), "it is served")
    await front.set_tenants(grant("team", "k-team", requests_per_minute=5))
    try:
        await until(lambda: refused_without_a_key(front), "a key is needed")
        headers = {"authorization": "Bearer k-team", names.HEADER_RESUME: "1", "x-request-id": "counted-once"}
        body = {"model": "limited", "stream": True}
        async with front.client.post(f"{front.url}/v1/chat/completions", json=body, headers=headers) as response:
            assert (response.status, await response.read()) == (200, pod.whole())
            assert response.headers.getall("x-ratelimit-remaining-requests") == ["4"]
        assert names.HEADER_RELAYED in pod.seen[-1].headers, "it went through the relay"
        await until(lambda: bool(lines(front, "counted-once")), "its line")
        (line,) = lines(front, "counted-once")
        assert (line["tenant"], line["endpoint"]) == ("team", f"127.0.0.1:{pod.http_port}")
        assert (line["completion_tokens"], line["outcome"]) == (pod.tokens, "ok")
    finally:
        await front.set_tenants()
        await until(lambda: front.routes("limited"), "no key is needed any more")


async def refused_without_a_key(front):
    return (await front.post("limited"))[0] == 401


def lines(front, request_id):
    return [found for line in front.audit_lines if (found := json.loads(line))["request_id"] == request_id]


async def test_a_stream_for_busy_replicas_is_told_its_place_and_goes_when_one_has_room(front, pods):
    await asleep(front, "busy")
    full = {"max_sequences": 1, "running": 1, "waiting": 1, "queue": QueueBounds(requests=1)}
    pods[0].set_state(**full)
    front.objects.serve("busy", pods[0])
    before = pods[0].state_reads
    await until(lambda: pods[0].state_reads > before + 1, "the picker has read that it is full")
    async with streaming(front, "busy") as response:
        found = await waits_at(response)
        assert (found["place"], found["phase"]) == (1, "queue")
        assert not pods[0].seen
        pods[0].set_state(waiting=0)
        assert (await response.read()).endswith(pods[0].whole())
