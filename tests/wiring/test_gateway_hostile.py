"""Requests that two servers might read differently, before the gateway's real Envoy: none reaches a pod as it came."""

import asyncio

import pytest
import pytest_asyncio

from fakes.gateway import gateway, until
from fakes.hostile_heads import BODY, HEADS, LENGTH, START
from fakes.stub_runtime import StubRuntime

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("gateway-hostile")]
CLOSED_AT_ONCE = {"a-field-of-a-megabyte", "a-target-of-a-megabyte"}
"""Envoy may close these before all was sent, so that its answer is lost."""
NORMALIZED = {"a-folded-field"}
OF_OTHERS = {"http-2"}
"""Envoy speaks it."""
LOOSE = {
    "a-folded-field": (START + b"x: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY, "a b"),
    "a-bare-line-feed": (START + b"x: a\n" + LENGTH + b"\r\n" + BODY, "a"),
    "bare-line-feeds-alone": ((START + b"x: a\r\n" + LENGTH + b"\r\n").replace(b"\r\n", b"\n") + BODY, "a"),
    "a-bare-carriage-return": (START + b"x: a\rb\r\n" + LENGTH + b"\r\n" + BODY, "ab"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pod():
    stub = await StubRuntime("pod").start()
    yield stub
    await stub.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front(pod):
    async with gateway() as running:
        running.objects.serve("tiny", pod)
        await until(lambda: running.routes("tiny"), "tiny")
        yield running


async def said(front, data, end):
    """What comes back on one connection, to its end or to a text in it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
    found = b""
    try:
        async with asyncio.timeout(60):
            writer.write(data)
            while end not in found and (part := await reader.read(65536)):
                found += part
    except ConnectionError:
        pass
    finally:
        writer.close()
    return found


async def test_a_head_that_may_be_read_in_two_ways_reaches_no_pod(front, pod):
    """All at once, since Envoy takes a second to close a connection. With one answer nothing behind the head was taken
    for another request."""
    names = sorted(HEADS.keys() - NORMALIZED - OF_OTHERS - CLOSED_AT_ONCE)
    before = len(pod.seen)
    answers = dict(
        zip(names, await asyncio.gather(*(said(front, HEADS[name][0], b'"}}') for name in names)), strict=True)
    )
    refused = (b"HTTP/1.1 4", b"HTTP/1.1 501")
    assert {n: a for n, a in answers.items() if not a.startswith(refused) or a.count(b"HTTP/1.1") != 1} == {}
    assert len(pod.seen) == before
    assert await front.routes("tiny")


@pytest.mark.parametrize(("data", "value"), LOOSE.values(), ids=LOOSE)
async def test_what_envoy_reads_loosely_reaches_a_pod_as_one_plain_request(front, pod, data, value):
    before = len(pod.seen)
    assert (await said(front, data, b"[DONE]")).startswith(b"HTTP/1.1 200")
    (seen,) = pod.seen[before:]
    assert (seen.headers.getall("x"), await seen.read()) == ([value], BODY)
