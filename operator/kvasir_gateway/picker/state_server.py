"""The HTTP server of the state port: probes, /state for the autoscaler, /metrics, /placements for the other gateways,
/choices/ID for who asks why a request went where it did. It changes nothing.

It has no keys: the docs say who may reach it, and what each page tells.
"""

import socket

import msgspec
from aiohttp import web

from kvasir_api import names, state
from kvasir_gateway import choice_records
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.placement_feed import PlacementFeed
from kvasir_gateway.picker.sync_loops import GatewayHealth
from kvasir_kube import http_sites
from kvasir_kube.health import Handler, handlers

METRICS = "/metrics"


class StateServer:
    """The HTTP server of the state port."""

    def __init__(
        self,
        *,
        picker: Picker,
        metrics: GatewayMetrics,
        health: GatewayHealth,
        feed: PlacementFeed,
        listening: socket.socket,
    ) -> None:
        self._picker, self._metrics, self._health = picker, metrics, health
        self._feed, self._listening = feed, listening
        application = web.Application()
        routes: dict[str, Handler] = {
            names.PATH_STATE: self._get_state,
            METRICS: self._get_metrics,
            **handlers(live=lambda: "", ready=health.missing),
            names.PATH_LIVEZ: self._get_livez,
        }
        for path, handler in routes.items():
            application.router.add_get(path, handler)
        application.router.add_get(names.PATH_PLACEMENTS, self._get_placements)
        application.router.add_get(names.PATH_CHOICES + "/{id}", self._get_choice)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)

    async def start(self) -> None:
        """Answer on the port, which listens already."""
        await self._runner.setup()
        await http_sites.SockSite(self._runner, self._listening).start()

    async def stop(self) -> None:
        """Close the server."""
        self._feed.close()
        await self._runner.cleanup()

    async def _get_state(self, _request: web.Request) -> web.Response:
        return web.Response(body=state.encode(self._picker.state()), content_type="application/json")

    async def _get_placements(self, request: web.Request) -> web.StreamResponse:
        return await self._feed.serve(request, self._picker.tenants.standing())

    async def _get_choice(self, request: web.Request) -> web.Response:
        record = self._picker.choices.find(request.match_info["id"])
        if record is None:
            return web.json_response({"message": "this gateway remembers no choice for this request"}, status=404)
        document = {"record": record, "explanation": choice_records.explained(record)}
        return web.Response(body=msgspec.json.encode(document), content_type="application/json")

    async def _get_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(
            body=self._metrics.render(self._picker.table, self._picker.inflight, self._picker.held),
            headers={"content-type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    async def _get_livez(self, _request: web.Request) -> web.Response:
        return web.Response(text="draining\n" if self._health.draining else "ok\n")
