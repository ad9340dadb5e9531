"""Routes about the state of the server: /health, /ping, /version, /load and /metrics, as vLLM has them."""

from typing import Any, Final

import msgspec
from fastapi import FastAPI
from starlette.responses import Response

from kvasir_api import __version__
from kvasir_runtime.server.app_state import AppState
from kvasir_runtime.server.json_response import json_response
from kvasir_runtime.server.observability import metrics


class Health(msgspec.Struct):
    """Whether requests are taken: ok, or the phase of the start."""

    status: str


class Version(msgspec.Struct):
    """Of Kvasir."""

    version: str


class Load(msgspec.Struct):
    """What runs and waits."""

    server_load: int
    running: int
    waiting: int


ANSWERS: Final[dict[str, Any]] = {"/health": Health, "/version": Version, "/load": Load}
"""The document with which each path answers."""


def add(app: FastAPI, app_state: AppState) -> None:
    """Add all of them."""

    @app.get("/health")
    async def health() -> Response:
        if not (unready := app_state.unready):
            return json_response(Health("ok"))
        status = app_state.lifecycle.phase if not app_state.lifecycle.ready else unready
        return json_response(Health(status), status=503)

    @app.get("/ping")
    @app.post("/ping")
    async def ping() -> Response:
        return Response(status_code=503 if app_state.unready else 200)

    @app.get("/version")
    async def version() -> Response:
        return json_response(Version(__version__))

    @app.get("/load")
    async def load() -> Response:
        state = app_state.snapshot()
        return json_response(Load(server_load=app_state.num_active, running=state.running, waiting=state.waiting))

    @app.get("/metrics")
    async def exposition() -> Response:
        return Response(app_state.metrics.exposition(), media_type=metrics.CONTENT_TYPE)
