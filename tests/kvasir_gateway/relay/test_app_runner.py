"""The HTTP server of the relay's process: heads as large as Envoy lets through, and no key in the log."""

import aiohttp
import pytest
from aiohttp import web

from kvasir_gateway import unix_socket
from kvasir_gateway.relay.app_runner import app_runner


@pytest.fixture
async def client(tmp_path):
    async def answer(request):
        return web.Response(text=request.headers.get("cookie", ""))

    application = web.Application()
    application.router.add_get("/", answer)
    runner = app_runner(application)
    await unix_socket.listen(runner, tmp_path / "a.sock", mode=0o660)
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(tmp_path / "a.sock"))) as session:
        yield session
    await runner.cleanup()


async def test_heads_that_envoy_lets_through_pass(client):
    large = "k" * (60 << 10)
    async with client.get("http://relay/", headers={"cookie": large}) as response:
        assert (response.status, await response.text()) == (200, large)


async def test_the_key_of_a_head_that_is_too_large_is_not_logged(client, caplog):
    headers = {"authorization": "Bearer " + "secret" * 20_000}
    async with client.get("http://relay/", headers=headers) as response:
        assert response.status == 400
    assert "secret" not in caplog.text
