"""HTTP and TCP checks against real sockets: what passes, and what is said when it does not."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from aiohttp import web

from kvasir_kube import http_sites
from kvasir_local.node import prober
from kvasir_local.node.container import Container
from kvasir_local.node.rules.probe import HttpGet, Sleep, TcpSocket

NOWHERE = cast("Container", None)
"""HTTP and TCP checks do not go into the container."""


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async def answer(request: web.Request) -> web.Response:
        if request.path == "/slow":
            await asyncio.Event().wait()
        status = {"/ok": 200, "/moved": 302, "/bad": 503}.get(request.path, 404)
        return web.Response(status=status, text=request.headers.get("X-Word", "text"), headers={"Location": "/bad"})

    app = web.Application()
    app.router.add_get("/{path}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await http_sites.TcpSite(runner, "127.0.0.1", 0).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def check(wanted: Any, *, timeout_s: float = 60) -> tuple[bool, str]:
    result = await prober.run_check(wanted, pod_ip="127.0.0.1", container=NOWHERE, timeout_s=timeout_s)
    return result.passed, result.message


def get(port: int, path: str, *headers: tuple[str, str]) -> HttpGet:
    return HttpGet(host="", port=port, path=path, scheme="http", headers=headers)


@pytest.mark.parametrize(("path", "passed"), [("/ok", True), ("/moved", True), ("/bad", False), ("/none", False)])
async def test_two_and_three_hundreds_pass_and_redirects_are_not_followed(port: int, path: str, passed: bool):
    assert (await check(get(port, path)))[0] is passed


async def test_a_bad_answer_is_quoted(port: int):
    message = "HTTP probe failed with statuscode: 503 because"
    assert await check(get(port, "/bad", ("X-Word", "because"))) == (False, message)


async def test_an_answer_after_the_timeout_fails(port: int):
    assert await check(get(port, "/slow"), timeout_s=0.05) == (False, "no answer within 0.05 s")


async def test_a_closed_port_is_named(port: int):
    assert await check(TcpSocket(host="", port=port)) == (True, "")
    assert await check(TcpSocket(host="127.0.0.2", port=port)) == (False, f"127.0.0.2:{port}: Connection refused")
    closed = HttpGet(host="127.0.0.2", port=port, path="/", scheme="http", headers=())
    assert await check(closed) == (False, f"127.0.0.2:{port}: Connection refused")


async def test_a_sleep_passes():
    assert await check(Sleep(seconds=0.01)) == (True, "")
