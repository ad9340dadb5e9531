"""The application of the http port: the routes of every API, /health and /metrics.

Built once by the process. Each folder of api/ adds its own routes. Every error, also one of routing, is written in the
shape of its path's API.
"""

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp

from kvasir_api import __version__, http_apis, openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.server.api import health, invocations
from kvasir_runtime.server.api.anthropic import routes as anthropic
from kvasir_runtime.server.api.ollama import routes as ollama
from kvasir_runtime.server.api.openai import routes as openai
from kvasir_runtime.server.api.openapi import described
from kvasir_runtime.server.api.pooling import routes as pooling
from kvasir_runtime.server.api.responses import routes as responses
from kvasir_runtime.server.app_state import AppState
from kvasir_runtime.server.middleware import Middleware
from kvasir_runtime.server.streaming import LingeringResponse


def http_app(app_state: AppState) -> ASGIApp:
    """The application of the http port, with its middleware."""
    app = FastAPI(title="Kvasir", version=__version__, docs_url=None, redoc_url=None)
    _add_errors(app, app_state)
    openai.add(app, app_state)
    responses.add(app, app_state)
    anthropic.add(app, app_state)
    ollama.add(app, app_state)
    pooling.add(app, app_state)
    health.add(app, app_state)
    invocations.add(app, app_state)
    app.openapi = lambda: _described(app, app_state)  # type: ignore[method-assign]
    edged: ASGIApp = Middleware(
        app,
        accepts_key=app_state.api_keys.accepts,
        snapshot=app_state.snapshot,
        measure=app_state.metrics.http,
        ended=app_state.ended_requests.add,
        tracing=lambda: app_state.tracing,
        root_path=root_path(app_state),
    )
    if app_state.options.cors_origin:
        edged = CORSMiddleware(
            edged,
            allow_origins=app_state.options.cors_origin,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=[
                "x-request-id",
                "retry-after",
                "x-should-retry",
                "x-kvasir-ignored-fields",
                "x-kvasir-no-drafts",
            ],
        )
    return edged


def _described(app: FastAPI, app_state: AppState) -> dict[str, Any]:
    document = described(app, app_state.names, strict=app_state.options.strict_fields)
    root = root_path(app_state)
    return document | ({"servers": [{"url": root}]} if root else {})


def root_path(app_state: AppState) -> str:
    """The prefix that a proxy leaves before our paths, with a slash before it and none behind."""
    bare = app_state.options.root_path.strip("/")
    return f"/{bare}" if bare else ""


def _add_errors(app: FastAPI, app_state: AppState) -> None:
    @app.exception_handler(Refused)
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        app_state.metrics.rejected(error.error.code or "other")
        return error_response(error.error, request.url.path)

    @app.exception_handler(Exception)
    async def failed(request: Request, _: Exception) -> Response:
        return error_response(openai_errors.internal(), request.url.path)  # the middleware logs it

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = request.method, request.url.path
        match error.status_code:
            case 404:
                answer = error_response(openai_errors.no_route(method, path), path)
            case 405:
                answer = error_response(openai_errors.method_not_allowed(method, path), path)
            case status:
                answer = error_response(openai_errors.invalid(HTTPStatus(status).phrase), path)
                answer.status_code = status
        answer.headers.update(error.headers or {})
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            answer.headers["allow"] = ", ".join(sorted(_methods(app, request)))
        return answer


def _methods(app: FastAPI, request: Request) -> set[str]:
    """What a path takes, by all of its routes; the framework names those of the first alone."""
    matching = [route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE]
    same = [route for route in matching if getattr(route, "path", "") == getattr(matching[0], "path", "")]
    return {method for route in same for method in getattr(route, "methods", None) or ()}


def error_response(error: ApiError, path: str) -> Response:
    """An error as a response. After a body that was not read to its end the connection cannot go on."""
    status, document, headers = http_apis.error_response(error, path)
    if status not in {408, 413}:
        return Response(document, status, headers)
    return LingeringResponse(document, status, {**headers, "connection": "close"})
