"""The HTTP server of the state port: probes, /state for the autoscaler, /metrics. Clients cannot reach this port.

`/drain` answers when the last request has ended: a preStop hook calls it and so keeps both containers alive until then.
Requests still arrive for a moment, until every load balancer in front of the gateway has seen that it is not ready.
"""

import asyncio

from aiohttp import web

from kvasir_api import names, state
from kvasir_gateway.envoy.admin import EnvoyAdmin
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.sync_loops import GatewayHealth
from kvasir_kube.health import Handler, handlers

METRICS = "/metrics"
POLL_S = 0.1


class StateServer:
    """The HTTP server of the state port."""

    def __init__(
        self,
        *,
        picker: Picker,
        metrics: GatewayMetrics,
        health: GatewayHealth,
        admin: EnvoyAdmin,
        address: str,
        port: int,
        drain_settle_s: float,
    ) -> None:
        self._picker, self._metrics, self._health, self._admin = picker, metrics, health, admin
        self._address, self._port, self._drain_settle_s = address, port, drain_settle_s
        application = web.Application()
        routes: dict[str, Handler] = {
            names.PATH_STATE: self._get_state,
            METRICS: self._get_metrics,
            names.PATH_DRAIN: self._get_drain,
            **handlers(live=lambda: "", ready=health.missing),
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

    async def _get_state(self, _request: web.Request) -> web.Response:
        return web.Response(body=state.encode(self._picker.state()), content_type="application/json")

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.render(self._picker.table, self._picker.inflight),
            headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _get_drain(self, _request: web.Request) -> web.Response:
        if not self._health.draining:
            self._health.draining = True
            await self._admin.drain()
        await asyncio.sleep(self._drain_settle_s)
        while self._picker.inflight.total():  # noqa: ASYNC110 - looked at rarely, and it ends in more than one way
            await asyncio.sleep(POLL_S)
        return web.Response(text="drained\n")
