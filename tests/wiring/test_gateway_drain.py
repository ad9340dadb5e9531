"""The gateway's real Envoy with our picker when it is drained, and when that is taken back."""

import asyncio

import aiohttp
import pytest
import pytest_asyncio

from fakes.gateway import gateway, until
from fakes.stub_runtime import StubRuntime
from kvasir_api import names
from kvasir_gateway.picker import drain_server

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("gateway-drain")]


@pytest_asyncio.fixture(loop_scope="module")
async def pods():
    stub = await StubRuntime("pod").start()
    yield [stub]
    await stub.stop()


def asked(front, service):
    return front.client.post(f"{front.url}/v1/chat/completions", json={"model": service})


async def test_draining_waits_for_the_last_stream(pods):
    pod = pods[0]
    async with gateway() as front:
        front.objects.serve("last", pod)
        await until(lambda: front.routes("last"), "last")
        pod.hold_tokens = asyncio.Event()
        async with asked(front, "last") as response:
            drained = asyncio.create_task(front.drain())
            await until(lambda: drains(front), "not ready while draining")
            assert not drained.done()
            pod.hold_tokens.set()
            assert await response.read() == pod.whole()
        assert await drained == "drained"


async def drains(front):
    """Not just that it is not ready, which it is for a moment where Envoy is late too."""
    return await front.page(names.PATH_LIVEZ) == (200, "draining\n") and not await front.is_ready()


async def test_a_drain_is_taken_back(pods):
    pod = pods[0]
    async with gateway() as front:
        front.objects.serve("back", pod)
        await until(lambda: front.routes("back"), "back")
        assert await front.drain() == "drained"
        assert (await front.page(names.PATH_READYZ), await front.page(names.PATH_LIVEZ)) == (
            (503, "draining\n"),
            (200, "draining\n"),
        )
        assert (await front.post("back"))[2]["connection"] == "close"
        await front.drain(on=False)
        await until(front.is_ready, "ready again, where Envoy is not late")
        assert await front.page(names.PATH_LIVEZ) == (200, "ok\n")

        async def kept():
            request = {"method": "POST", "url": f"{front.url}/v1/completions", "json": {"model": "back"}}
            async with aiohttp.ClientSession() as client, client.request(**request) as response:
                return "connection" not in response.headers

        await until(kept, "connections are kept again")
        pod.hold_tokens = asyncio.Event()
        async with asked(front, "back") as response:
            drained = asyncio.create_task(front.drain())
            await until(lambda: drains(front), "it drains")
            await front.drain(on=False)
            with pytest.raises(OSError, match="the gateway takes requests again"):
                await drained
            pod.hold_tokens.set()
            assert await response.read() == pod.whole()


async def test_nothing_on_the_network_drains_the_gateway_and_no_other_user_may():
    async with gateway() as front:
        for method in ("GET", "POST", "DELETE"):
            assert (await front.page(names.PATH_DRAIN, method=method))[0] == 404
            async with front.client.request(method, front.url + names.PATH_DRAIN) as response:
                assert response.status == 404
        assert await front.is_ready()
        assert (front.directory / drain_server.DRAIN_SOCKET).stat().st_mode & 0o777 == 0o600


async def test_a_picker_that_is_new_drains_the_streams_of_the_one_before_and_takes_requests(pods):
    """The next picker knows nothing of the requests that the one before chose for, nor that it drained."""
    pod = pods[0]
    async with gateway() as front:
        front.objects.serve("inherits", pod)
        await until(lambda: front.routes("inherits"), "inherits")
        pod.hold_tokens = asyncio.Event()
        async with asked(front, "inherits") as response:
            draining = asyncio.create_task(front.drain())
            await until(lambda: drains(front), "it drains")
            await front.stop_picker()
            await asyncio.gather(draining, return_exceptions=True)
            front.start_picker()
            await until(front.is_ready, "the next picker is ready")
            again = asyncio.create_task(front.drain())
            await until(lambda: drains(front), "it drains too")
            done, _ = await asyncio.wait({again}, timeout=0.5)
            assert not done
            pod.hold_tokens.set()
            assert await response.read() == pod.whole()
        assert await again == "drained"
