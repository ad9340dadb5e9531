"""Probes of our own pods: whether the process lives, is ready, has started. Used by the operator and the gateway."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from kvasir_api import names

Health = Callable[[], str]
"""Empty when all is well, else one sentence."""
Handler = Callable[[web.Request], Awaitable[web.Response]]
MOST_WAIT_S: Final = 60.0
POLL_S: Final = 0.05


def handlers(*, live: Health, ready: Health) -> dict[str, Handler]:
    """By path. /livez and /readyz: 200 ok, or 503 with the sentence.

    /startupz?wait_s=N: 200 as soon as the process is ready, and after N seconds (0..60) in any case: a probe that fails
    leaves a Warning event, and a start that takes longer is the readiness probe's to report.
    """

    async def startup(request: web.Request) -> web.Response:
        try:
            wait_s = float(request.query.get("wait_s", 0))
        except ValueError:
            wait_s = -1.0
        if not 0 <= wait_s <= MOST_WAIT_S:
            return web.Response(status=400, text=f"wait_s must be 0 to {MOST_WAIT_S:g}\n")
        until = time.monotonic() + wait_s
        while ready() and time.monotonic() < until:  # noqa: ASYNC110 -- what is waited for has no event
            await asyncio.sleep(POLL_S)
        return web.Response(text=f"{ready() or 'ok'}\n")

    return {names.PATH_LIVEZ: _probe(live), names.PATH_READYZ: _probe(ready), names.PATH_STARTUPZ: startup}


def _probe(check: Health) -> Handler:
    async def answer(_: web.Request) -> web.Response:
        wrong = check()
        return web.Response(status=503 if wrong else 200, text=f"{wrong or 'ok'}\n")

    return answer
