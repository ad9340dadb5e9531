"""What becomes of a connection that comes in the very turn of the loop in which its server stops."""

import asyncio
import gc
import socket

import pytest
from aiohttp import web

from kvasir_kube import http_sites


def on_loopback(runner, _tmp_path):
    return http_sites.TcpSite(runner, "127.0.0.1", 0)


def on_a_socket(runner, _tmp_path):
    return http_sites.SockSite(runner, socket.create_server(("127.0.0.1", 0)))


def on_a_unix_socket(runner, tmp_path):
    return http_sites.UnixSite(runner, str(tmp_path / "its.sock"))


@pytest.mark.parametrize("site_of", [on_loopback, on_a_socket, on_a_unix_socket])
@pytest.mark.parametrize("turns", range(5))
async def test_a_connection_that_comes_as_its_server_stops_is_closed(tmp_path, site_of, turns):
    runner = web.AppRunner(web.Application(), shutdown_timeout=0.1)
    await runner.setup()
    await site_of(runner, tmp_path).start()
    (address,) = runner.addresses
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as client:
        client.connect(address)
        for _ in range(turns):
            await asyncio.sleep(0)
        gc.disable()  # collected memory closes a lost connection too, sooner or later
        try:
            await runner.cleanup()
            await asyncio.sleep(0)
            client.settimeout(5)
            try:
                assert client.recv(1) == b""
            except ConnectionResetError:
                pass
        finally:
            gc.enable()


async def test_a_site_that_never_listened_stops(tmp_path):
    runner = web.AppRunner(web.Application())
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        site = http_sites.TcpSite(runner, *taken.getsockname())
        with pytest.raises(OSError, match="in use"):
            await site.start()
        await runner.cleanup()
