"""Probes of the operator and the gateway, over real HTTP."""

import asyncio

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from kvasir_kube.health import handlers


class Process:
    live = ready = ""


@pytest.fixture
async def bench():
    process, app = Process(), web.Application()
    for path, handler in handlers(live=lambda: process.live, ready=lambda: process.ready).items():
        app.router.add_get(path, handler)
    async with TestClient(TestServer(app)) as client:
        yield process, client


async def answer(client, path):
    async with client.get(path) as response:
        return response.status, (await response.text()).strip()


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
async def test_what_is_wrong_is_said(bench, path):
    process, client = bench
    assert await answer(client, path) == (200, "ok")
    process.live = process.ready = "the first list is not complete"
    assert await answer(client, path) == (503, "the first list is not complete")


async def test_a_start_is_waited_for(bench):
    process, client = bench
    process.ready = "nothing is listed yet"
    asked = asyncio.create_task(answer(client, "/startupz?wait_s=60"))
    assert await answer(client, "/readyz") == (503, "nothing is listed yet")
    assert not asked.done()
    process.ready = ""
    assert await asyncio.wait_for(asked, 60) == (200, "ok")


async def test_a_start_that_takes_longer_is_left_to_the_readiness_probe(bench):
    process, client = bench
    process.ready = "nothing is listed yet"
    assert await answer(client, "/startupz?wait_s=0.01") == (200, "nothing is listed yet")
    assert await answer(client, "/startupz") == (200, "nothing is listed yet")


@pytest.mark.parametrize("wait_s", ["x", "-1", "61", "nan", "inf"])
async def test_a_wait_is_bounded(bench, wait_s):
    assert (await answer(bench[1], f"/startupz?wait_s={wait_s}"))[0] == 400
