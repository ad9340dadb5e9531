"""The operator's two small HTTP ports: health for the kubelet, metrics for Prometheus."""

from collections.abc import Awaitable, Callable

from aiohttp import web

Health = Callable[[], str]
"""Empty when all is well, else one sentence."""


def health_app(*, live: Health, ready: Health) -> web.Application:
    """/livez and /readyz: 200 ok, or 503 with the sentence."""

    app = web.Application()
    app.router.add_get("/livez", _probe(live))
    app.router.add_get("/readyz", _probe(ready))
    return app


def _probe(check: Health) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_: web.Request) -> web.Response:
        wrong = check()
        return web.Response(status=503 if wrong else 200, text=f"{wrong or 'ok'}\n")

    return answer


def metrics_app(text: Callable[[], bytes]) -> web.Application:
    """/metrics in the Prometheus text format."""

    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=text(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})

    app = web.Application()
    app.router.add_get("/metrics", answer)
    return app


async def serve(app: web.Application, *, host: str, port: int) -> tuple[web.AppRunner, int]:
    """Listen; returns the runner to clean up, and the port (a free one for 0)."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, host, port).start()
    return runner, int(runner.addresses[0][1])
