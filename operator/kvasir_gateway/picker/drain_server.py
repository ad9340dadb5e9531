"""Drains the gateway and takes it back, over a unix socket in the directory that only the pod's containers share.

`kvasir gateway drain` is the preStop hook of the picker's container: its request is answered when the last request of a
client has ended. Envoy's container has no such command, and waits with flock(1) for the lock that is held until then.
No network reaches either. Requests still arrive for a moment, until every load balancer in front has seen that the
gateway is not ready.
"""

import asyncio
import fcntl
import os
from pathlib import Path
from typing import Final

import aiohttp
from aiohttp import web

from kvasir_api import names
from kvasir_gateway import unix_socket
from kvasir_gateway.envoy.admin import EnvoyAdmin
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.sync_loops import GatewayHealth

DRAIN_SOCKET: Final = "drain.sock"
DRAIN_LOCK: Final = "drain.lock"
"""Locked until the gateway is drained, or its picker has died."""
POLL_S: Final = 0.1


class DrainServer:
    """Serves POST (drain) and DELETE (take requests again). settle_s: time for load balancers to see that the gateway
    is not ready, in which requests still arrive."""

    def __init__(
        self, *, picker: Picker, health: GatewayHealth, admin: EnvoyAdmin, directory: Path, settle_s: float
    ) -> None:
        self._picker, self._health, self._admin, self._settle_s = picker, health, admin, settle_s
        self._socket, self._lock = directory / DRAIN_SOCKET, _Lock(directory / DRAIN_LOCK)
        application = web.Application()
        application.router.add_post(names.PATH_DRAIN, self._drain)
        application.router.add_delete(names.PATH_DRAIN, self._undo)
        self._runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)

    async def start(self) -> None:
        """Listen. What an earlier process of this pod left behind is replaced: this one takes requests."""
        await self._lock.take()
        await unix_socket.listen(self._runner, self._socket)

    async def stop(self) -> None:
        """Close the server."""
        await self._runner.cleanup()
        self._socket.unlink(missing_ok=True)
        self._lock.close()

    async def _drain(self, _request: web.Request) -> web.Response:
        self._health.draining = True
        await self._admin.set_draining(True)
        await asyncio.sleep(self._settle_s)
        while self._health.draining:
            if not await self._num_active():
                self._lock.give_back()
                return web.Response(text="drained\n")
            await asyncio.sleep(POLL_S)
        return web.Response(status=409, text="the gateway takes requests again\n")

    async def _undo(self, _request: web.Request) -> web.Response:
        self._health.draining = False
        await self._lock.take()
        await self._admin.set_draining(False)
        return web.Response(text="the gateway takes requests\n")

    async def _num_active(self) -> int:
        """Requests in Envoy, which also has those that an earlier picker chose for; without an answer, as of an Envoy
        that is late, the own count with as many of those as it had last."""
        active, inherited = await self._admin.active_requests(), self._picker.ends.inherited
        return self._picker.inflight.total() + sum(inherited.values()) if active is None else active


class _Lock:
    """An exclusive lock of a file. It ends with the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = -1

    async def take(self) -> None:
        """Wait for it; who else has it only looks."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                await asyncio.sleep(POLL_S)
            else:
                return

    def give_back(self) -> None:
        """Let others have it."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """For good."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


async def request_drain(directory: Path, *, on: bool) -> str:
    """Drain the gateway whose files are in a directory and wait for its last request, or take it back. Returns what it
    answers; raises OSError where it does not, and does not confirm."""
    connector = aiohttp.UnixConnector(path=str(directory / DRAIN_SOCKET))
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, base_url="http://gateway") as session:
        try:
            async with session.request("POST" if on else "DELETE", names.PATH_DRAIN) as response:
                text = (await response.text()).strip()
        except aiohttp.ClientError as error:
            raise OSError(f"the gateway of {directory} does not answer: {error}") from error
    if response.status >= 300:
        raise OSError(f"the gateway of {directory} does not drain: {text}")
    return text
