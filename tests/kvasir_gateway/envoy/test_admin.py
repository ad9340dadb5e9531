"""What Envoy says of itself, in whatever pieces it arrives; what it cannot mean is no status."""

import contextlib
import json
import os

import pytest
from aiohttp import web

from kvasir_gateway.envoy.admin import EnvoyAdmin
from kvasir_gateway.envoy.bootstrap import ADMIN_SOCKET
from kvasir_kube import http_sites

INFO = json.dumps({"state": "LIVE", "command_line_options": {"x": "y" * 5000}}).encode()
ACTIVE = (
    "cluster.a.b.upstream_rq_active: 2\ncluster.a.b.upstream_rq_pending_active: 1\ncluster.c.upstream_rq_active: 0\n"
)
STATS = f'cluster.a.b.version: "0a0b"\n{ACTIVE}'.encode()


@contextlib.asynccontextmanager
async def envoy(directory, info, stats):
    """The two pages on a socket, each in pieces of which every one is sent by itself."""
    pages = {"/server_info": info, "/stats": stats}

    async def say(request):
        response = web.StreamResponse()
        await response.prepare(request)
        body = pages[request.path]
        for start in range(0, len(body), 1000):
            await response.write(body[start : start + 1000])
        return response

    application = web.Application()
    application.router.add_get("/{page}", say)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await http_sites.UnixSite(runner, str(directory / ADMIN_SOCKET)).start()
    admin = EnvoyAdmin(directory)
    try:
        yield admin
    finally:
        await admin.close()
        await runner.cleanup()


async def test_answers_in_pieces_are_read_whole(tmp_path):
    async with envoy(tmp_path, INFO, STATS) as admin:
        os.utime(tmp_path / ADMIN_SOCKET, (0, 0))
        found = await admin.status()
        assert found is not None
        assert found.live
        assert found.active == {"a.b": 3}
        assert found.incarnation == ((tmp_path / ADMIN_SOCKET).stat().st_ino, 0)
        assert found.age_s > 1_000_000_000


async def test_an_envoy_that_starts_is_not_live(tmp_path):
    async with envoy(tmp_path, b'{"state": "INITIALIZING"}', b"") as admin:
        found = await admin.status()
        assert found is not None
        assert (found.live, found.active) == (False, {})


@pytest.mark.parametrize(
    ("info", "stats"),
    [
        (INFO[:-1], STATS),
        (b"[]", STATS),
        (b"{}", STATS),
        (INFO, b"cluster.a.upstream_rq_active: many"),
        (INFO, b"\xff"),
    ],
)
async def test_what_envoy_cannot_mean_is_no_status(tmp_path, info, stats):
    async with envoy(tmp_path, info, stats) as admin:
        assert await admin.status() is None


async def test_an_envoy_that_is_not_there_is_no_status(tmp_path):
    admin = EnvoyAdmin(tmp_path)
    assert await admin.status() is None
    assert await admin.set_draining(True) is False
    assert await admin.active_requests() is None
    await admin.close()
