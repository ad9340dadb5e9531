"""The operator's two small HTTP ports: health for the kubelet, metrics for Prometheus."""

import socket
from collections.abc import Callable

from aiohttp import web

from kvasir_kube import http_sites
from kvasir_kube.health import Health, handlers


def health_app(*, live: Health, ready: Health) -> web.Application:
    """/livez, /readyz and /startupz."""
    app = web.Application()
    for path, handler in handlers(live=live, ready=ready).items():
        app.router.add_get(path, handler)
    return app


def metrics_app(text: Callable[[], bytes]) -> web.Application:
    """/metrics in the Prometheus text format."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    return app


async def serve(app: web.Application, listening: socket.socket) -> web.AppRunner:
    """Answer on a port that listens; returns the runner to clean up."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await http_sites.SockSite(runner, listening).start()
    return runner
