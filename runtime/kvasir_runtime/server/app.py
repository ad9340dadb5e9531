"""The http port: OpenAI's API, the other surfaces, /health and /metrics.

Built once by the process. Routes are thin: they name a body's meaning and hand an Answering back. Every error leaves
here in the shape of its path's surface, also those of routing.
"""

import asyncio
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp

from kvasir_api import __version__, openai_errors, surfaces
from kvasir_api.openai_errors import ApiError
from kvasir_runtime.server import aborts, interrupts, metrics, prepare, tokens
from kvasir_runtime.server.aborts import AbortBody, AbortOneBody
from kvasir_runtime.server.bodies import ChatBody, CompletionBody
from kvasir_runtime.server.bodyread import read_body
from kvasir_runtime.server.edge import Edge
from kvasir_runtime.server.generation import Prepared, answering
from kvasir_runtime.server.handed import HandedAnswer
from kvasir_runtime.server.interrupts import ResultsBody
from kvasir_runtime.server.jsons import body_schema, json_response
from kvasir_runtime.server.openapi import described
from kvasir_runtime.server.pod import Pod
from kvasir_runtime.server.pooling.routes import add_pooling
from kvasir_runtime.server.prepare import Served
from kvasir_runtime.server.refusals import Refused
from kvasir_runtime.server.surfaces.messages import routes as messages
from kvasir_runtime.server.surfaces.ollama import routes as ollama
from kvasir_runtime.server.surfaces.responses import routes as responses
from kvasir_runtime.server.tokens import DetokenizeBody, TokenizeBody


def http_app(pod: Pod) -> ASGIApp:
    """The application of the http port, with its edge."""
    app = FastAPI(title="Kvasir", version=__version__, docs_url=None, redoc_url=None)
    _add_errors(app)
    _add_generation(app, pod)
    responses.add(app, pod)
    messages.add(app, pod)
    ollama.add(app, pod)
    add_pooling(app, pod)
    _add_tokens(app, pod)
    _add_models(app, pod)
    _add_health(app, pod)
    app.openapi = lambda: described(app, pod.names)  # type: ignore[method-assign]
    edged: ASGIApp = Edge(
        app,
        lets_in=pod.keys.let_in,
        snapshot=pod.snapshot,
        measure=pod.metrics.http,
        tracing=lambda: pod.tracing,
    )
    if pod.options.cors_origin:
        edged = CORSMiddleware(
            edged,
            allow_origins=pod.options.cors_origin,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", "x-should-retry"],
        )
    return edged


def _add_generation(app: FastAPI, pod: Pod) -> None:
    @app.post("/v1/completions", openapi_extra=body_schema(CompletionBody))
    async def completions(request: Request) -> Response:
        return await answering(request, pod, lambda raw, served: Prepared(job=prepare.job(raw, served, chat=False)))

    @app.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody))
    async def chat_completions(request: Request) -> Response:
        return await answering(request, pod, lambda raw, served: Prepared(job=prepare.job(raw, served, chat=True)))

    @app.post("/v1/chat/completions/{answer_id}/tool_results", openapi_extra=body_schema(ResultsBody))
    async def tool_results(answer_id: str, request: Request) -> Response:
        body = interrupts.parsed(await read_body(request, pod.options.max_body_bytes))
        answer = next((one for one in pod.running.named(answer_id) if isinstance(one, HandedAnswer)), None)
        if answer is None:
            raise Refused(openai_errors.answer_not_running(answer_id))
        accepted = await answer.hand_in(body.results)
        return json_response({"id": answer_id, "object": "chat.completion.tool_results", "accepted": accepted})

    @app.post("/abort_requests", openapi_extra=body_schema(AbortBody))
    async def abort_requests(request: Request) -> Response:
        return await _abort(request, aborts.of_vllm)

    @app.post("/abort_request", openapi_extra=body_schema(AbortOneBody))
    async def abort_request(request: Request) -> Response:
        return await _abort(request, aborts.of_sglang)

    async def _abort(request: Request, ids_of: Callable[[bytes], Sequence[str]]) -> Response:
        raw = await read_body(request, pod.options.max_body_bytes)
        return json_response({"num_aborted": sum(map(pod.running.abort, ids_of(raw)))})


def _add_tokens(app: FastAPI, pod: Pod) -> None:
    async def answer(request: Request, made: Callable[[bytes, Served], dict[str, Any]]) -> Response:
        opened = pod.open_or_refuse()
        raw = await read_body(request, pod.options.max_body_bytes)
        loop = asyncio.get_running_loop()
        return json_response(await loop.run_in_executor(pod.threads, made, raw, opened.served))

    @app.post("/tokenize", openapi_extra=body_schema(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        return await answer(request, tokens.tokenize)

    @app.post("/detokenize", openapi_extra=body_schema(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        return await answer(request, tokens.detokenize)


def _add_models(app: FastAPI, pod: Pod) -> None:
    def document(name: str) -> dict[str, Any]:
        limit = pod.opened.served.max_context if pod.opened is not None else None
        return {
            "id": name,
            "object": "model",
            "created": pod.created,
            "owned_by": "kvasir",
            "root": pod.names[0],
            "parent": None,
            "max_model_len": limit,
        }

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [document(name) for name in pod.names]})

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name not in pod.names:
            raise Refused(openai_errors.model_not_found(name))
        return json_response(document(name))


def _add_health(app: FastAPI, pod: Pod) -> None:
    @app.get("/health")
    async def health() -> Response:
        ready = pod.lifecycle.ready
        return json_response({"status": "ok" if ready else pod.lifecycle.phase}, status=200 if ready else 503)

    @app.get("/ping")
    @app.post("/ping")
    async def ping() -> Response:
        return Response(status_code=200 if pod.lifecycle.ready else 503)

    @app.get("/version")
    async def version() -> Response:
        return json_response({"version": __version__})

    @app.get("/load")
    async def load() -> Response:
        state = pod.snapshot()
        return json_response({"server_load": pod.num_active, "running": state.running, "waiting": state.waiting})

    @app.get("/metrics")
    async def exposition() -> Response:
        return Response(pod.metrics.exposition(), media_type=metrics.CONTENT_TYPE)


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(Refused)
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return error_response(error.error, request.url.path)

    @app.exception_handler(Exception)
    async def failed(request: Request, _: Exception) -> Response:
        return error_response(openai_errors.internal(), request.url.path)  # the edge logs it

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
                answer = error_response(openai_errors.invalid(HTTPStatus(status).phrase, status=status), path)
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
    status, document, headers = surfaces.error_response(error, path)
    if status in {408, 413}:
        headers["connection"] = "close"
    return Response(document, status, headers)
