"""Readings of pods that answer, are slow, answer nonsense, or too much."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from kvasir_api import names, state
from kvasir_kube.readings import MAX_BYTES, Reader, url


@pytest.fixture
async def pods():
    """Base URL of a server that is several pods, one per path prefix, and the drain calls it got."""
    calls: list[str] = []
    release = asyncio.Event()

    async def good(_: web.Request) -> web.Response:
        return web.Response(body=state.encode(state.State(running=3)))

    async def future(_: web.Request) -> web.Response:
        return web.json_response({"schema": 9, "running": 4, "from_the_future": {"x": 1}})

    async def slow(_: web.Request) -> web.Response:
        await release.wait()
        return web.Response()

    async def nonsense(_: web.Request) -> web.Response:
        return web.Response(body=b'{"running": "many"}')

    async def huge(_: web.Request) -> web.Response:
        return web.Response(body=b" " * (MAX_BYTES + 1) + b"{}")

    async def drain(request: web.Request) -> web.Response:
        calls.append(request.method)
        return web.Response(status=202)

    app = web.Application()
    for name, answer in (("good", good), ("future", future), ("slow", slow), ("nonsense", nonsense), ("huge", huge)):
        app.router.add_get(f"/{name}{names.PATH_STATE}", answer)
    app.router.add_route("*", f"/good{names.PATH_DRAIN}", drain)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield f"http://127.0.0.1:{port}", calls
    release.set()
    await runner.cleanup()


async def test_a_pod_without_a_sound_answer_is_no_reading(pods):
    base, _ = pods
    targets = {name: f"{base}/{name}" for name in ("good", "future", "slow", "nonsense", "huge", "absent")}
    targets["refused"] = "http://127.0.0.1:1"
    async with aiohttp.ClientSession() as session:
        readings = await Reader(session).states(targets, deadline_s=0.5)
    assert {name: reading.running for name, reading in readings.items()} == {"good": 3, "future": 4}


async def test_drain_is_asked_for_and_taken_back(pods):
    base, calls = pods
    async with aiohttp.ClientSession() as session:
        reader = Reader(session)
        agreed = [await reader.drain(f"{base}/good", on=on) for on in (True, False)]
        refused = await reader.drain("http://127.0.0.1:1", on=True)
    assert (agreed, refused, calls) == ([True, True], False, ["POST", "DELETE"])


def test_addresses_of_version_6_get_brackets():
    assert url("fd00::1", 8001, "/state") == "http://[fd00::1]:8001/state"
