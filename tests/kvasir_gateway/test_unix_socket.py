"""HTTP servers on unix sockets: the next process takes the socket over, with the permissions that it is given."""

import contextlib
import socket
import stat

import aiohttp
import pytest
from aiohttp import web

from kvasir_gateway import unix_socket


async def served(path, text, **options):
    """A runner that answers with a text."""

    async def answer(_):
        return web.Response(text=text)

    application = web.Application()
    application.router.add_get("/", answer)
    runner = web.AppRunner(application)
    await unix_socket.listen(runner, path, **options)
    return runner


@pytest.mark.parametrize(("options", "mode"), [({}, 0o600), ({"mode": 0o660}, 0o660)])
async def test_the_socket_of_an_earlier_process_is_replaced(tmp_path, options, mode):
    path = tmp_path / "it.sock"
    runners = [await served(path, text, **options) for text in ("earlier", "later")]
    assert stat.S_IMODE(path.stat().st_mode) == mode
    connector = aiohttp.UnixConnector(path=str(path))
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://it/") as response:
        assert await response.text() == "later"
    for runner in reversed(runners):
        await runner.cleanup()


async def test_connections_wait_for_a_server_that_is_busy(tmp_path):
    """As many as streams begin in some seconds; the kernel refuses what exceeds the backlog."""
    path = tmp_path / "it.sock"
    runner = await served(path, "busy")
    with contextlib.ExitStack() as stack:
        for _ in range(500):
            client = stack.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            client.connect(str(path))
    await runner.cleanup()
