"""The ops port, for the control plane only: probes, the /state document, drain.

Built once by the process. The probes answer from what the process knows, without asking the engine, so a busy engine
never fails one; the liveness probe fails when the engine has said nothing for much longer than any step takes.
"""

from typing import Final

from fastapi import FastAPI
from starlette.responses import Response

from kvasir_api import names, state
from kvasir_runtime.server.app_state import AppState
from kvasir_runtime.server.json_response import json_response

SILENT_S: Final = 120.0
"""An idle engine speaks once a second, a busy one after each step; the longest step of a slow CPU takes seconds."""


def ops_app(pod: AppState) -> FastAPI:
    """The application of the ops port."""
    app = FastAPI(title="Kvasir ops", docs_url=None, redoc_url=None, openapi_url=None)
    _add_probes(app, pod)
    _add_drain(app, pod)
    return app


def _add_probes(app: FastAPI, pod: AppState) -> None:
    @app.get(names.PATH_LIVEZ)
    async def livez() -> Response:
        snapshot = pod.snapshot()
        silent = pod.lifecycle.was_ready and snapshot.heartbeat_age_s > SILENT_S
        alive = not pod.lifecycle.failed and not silent
        return json_response(
            {"alive": alive, "heartbeat_age_s": snapshot.heartbeat_age_s, "step": snapshot.step},
            status=200 if alive else 503,
        )

    @app.get(names.PATH_READYZ)
    async def readyz() -> Response:
        ready = pod.lifecycle.ready
        return json_response({"ready": ready, "phase": pod.lifecycle.phase}, status=200 if ready else 503)

    @app.get(names.PATH_STARTUPZ)
    async def startupz() -> Response:
        lifecycle = pod.lifecycle
        document = {
            "phase": lifecycle.phase,
            "progress_fraction": lifecycle.fraction,
            "eta_s": lifecycle.eta_s,
            "message": lifecycle.message,
        }
        return json_response(document, status=200 if lifecycle.was_ready else 503)

    @app.get(names.PATH_STATE)
    async def state_document() -> Response:
        return Response(state.encode(pod.snapshot()), media_type="application/json")


def _add_drain(app: FastAPI, pod: AppState) -> None:
    def document() -> Response:
        snapshot = pod.snapshot()
        return json_response({"phase": snapshot.phase, "requests": pod.num_active, "running": snapshot.running})

    @app.post(names.PATH_DRAIN)
    async def drain() -> Response:
        pod.lifecycle.drain()
        return document()

    @app.delete(names.PATH_DRAIN)
    async def undrain() -> Response:
        if not pod.lifecycle.undrain():
            return json_response({"phase": pod.lifecycle.phase, "error": "the process is leaving"}, status=409)
        return document()
