"""The gateway's own pages for probes, autoscaler and Prometheus, on the state port; clients cannot reach it.

`/drain` answers when the last request has ended: a preStop hook that asks for it keeps both containers alive so long.
Requests still come for a moment, until every balancer before us has seen that we are not ready.
"""

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from kvasir_api import names, state
from kvasir_gateway.envoy.admin import Admin
from kvasir_gateway.picker.instruments import Instruments
from kvasir_gateway.picker.loops import Health
from kvasir_gateway.picker.picker import Picker

METRICS = "/metrics"
POLL_S = 0.1


class Pages:
    """The HTTP server of the state port."""

    def __init__(
        self,
        *,
        picker: Picker,
        instruments: Instruments,
        health: Health,
        admin: Admin,
        address: str,
        port: int,
        drain_settle_s: float,
    ) -> None:
        self._picker, self._instruments, self._health, self._admin = picker, instruments, health, admin
        self._address, self._port, self._drain_settle_s = address, port, drain_settle_s
        application = web.Application()
        routes: dict[str, Callable[[web.Request], Awaitable[web.Response]]] = {
            names.PATH_STATE: self._state,
            METRICS: self._metrics,
            names.PATH_LIVEZ: self._livez,
            names.PATH_READYZ: self._readyz,
            names.PATH_DRAIN: self._drain,
        }
        for path, handler in routes.items():
            application.router.add_get(path, handler)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)

    async def start(self) -> None:
        """Listen."""
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address, self._port).start()

    async def stop(self) -> None:
        """Close the server."""
        await self._runner.cleanup()

    async def _state(self, _request: web.Request) -> web.Response:
        return web.Response(body=state.encode(self._picker.state()), content_type="application/json")

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=self._instruments.text(self._picker.table, self._picker.tickets),
            headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _livez(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _request: web.Request) -> web.Response:
        missing = self._health.missing()
        return web.Response(status=503 if missing else 200, text=f"{missing or 'ok'}\n")

    async def _drain(self, _request: web.Request) -> web.Response:
        if not self._health.draining:
            self._health.draining = True
            await self._admin.drain()
        await asyncio.sleep(self._drain_settle_s)
        while self._picker.tickets.total():  # noqa: ASYNC110 - looked at rarely, and it ends in more than one way
            await asyncio.sleep(POLL_S)
        return web.Response(text="drained\n")
