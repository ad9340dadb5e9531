"""The http port: OpenAI's API, /health and /metrics.

Built once by the process. Routes are thin: they ask the pod whether it serves, prepare the job in a thread, and hand an
Answering back. Every error leaves here in OpenAI's shape, also those of routing.
"""

import asyncio
import random
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from kvasir_api import __version__, openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_runtime.server import metrics, prepare, tokens
from kvasir_runtime.server.admission import queue_refusal
from kvasir_runtime.server.bodies import ChatBody, CompletionBody
from kvasir_runtime.server.bodyread import read_body
from kvasir_runtime.server.edge import Edge
from kvasir_runtime.server.jsons import json_response
from kvasir_runtime.server.pod import Opened, Pod
from kvasir_runtime.server.prepare import Served
from kvasir_runtime.server.refusals import Refused
from kvasir_runtime.server.streams import Answering, StreamedAnswer, WholeAnswer
from kvasir_runtime.server.tokens import DetokenizeBody, TokenizeBody


def http_app(pod: Pod) -> ASGIApp:
    """The application of the http port, with its edge."""
    app = FastAPI(title="Kvasir", version=__version__, docs_url=None, redoc_url=None)
    _add_errors(app)
    _add_generation(app, pod)
    _add_tokens(app, pod)
    _add_models(app, pod)
    _add_health(app, pod)
    edged: ASGIApp = Edge(app, api_keys=pod.options.api_key, snapshot=pod.snapshot, measure=pod.metrics.http)
    if pod.options.cors_origin:
        edged = CORSMiddleware(
            edged,
            allow_origins=pod.options.cors_origin,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=["x-request-id", "retry-after", "x-should-retry"],
        )
    return edged


def _add_generation(app: FastAPI, pod: Pod) -> None:
    @app.post("/v1/completions", openapi_extra=_body_schema(CompletionBody))
    async def completions(request: Request) -> Response:
        return await _generate(request, pod, chat=False)

    @app.post("/v1/chat/completions", openapi_extra=_body_schema(ChatBody))
    async def chat_completions(request: Request) -> Response:
        return await _generate(request, pod, chat=True)


async def _generate(request: Request, pod: Pod, *, chat: bool) -> Answering:
    """Refuse early and cheaply, prepare in a thread, then check the queue again with the true number of sequences."""
    arrived = pod.clock()
    opened = pod.open_or_refuse()
    _check_queue(pod, opened, 1)
    raw = await read_body(request, pod.options.max_body_bytes)
    pod.enter()
    pod.num_preparing += 1
    try:
        loop = asyncio.get_running_loop()
        try:
            job = await loop.run_in_executor(pod.threads, lambda: prepare.job(raw, opened.served, chat=chat))
        finally:
            pod.num_preparing -= 1
        pod.open_or_refuse()
        _check_queue(pod, opened, len(job.requests))
    except BaseException:
        pod.leave()
        raise
    form = StreamedAnswer if job.stream else WholeAnswer
    return form(
        job,
        opened.client,
        opened.served.tokenizer,
        meter=pod.metrics,
        arrived=arrived,
        created=int(time.time()),
        fingerprint=opened.fingerprint,
        on_end=pod.leave,
        clock=pod.clock,
    )


def _check_queue(pod: Pod, opened: Opened, num_new: int) -> None:
    """Requests in threads count too: a burst must not get past the bound while it is being tokenized."""
    refusal = queue_refusal(
        opened.client.state,
        inflight=opened.client.num_inflight + pod.num_preparing + num_new,
        max_sequences=opened.max_sequences,
        max_waiting=pod.options.max_waiting,
        jitter=random.random(),
    )
    if refusal is not None:
        raise Refused(refusal)


def _add_tokens(app: FastAPI, pod: Pod) -> None:
    async def answer(request: Request, made: Callable[[bytes, Served], dict[str, Any]]) -> Response:
        opened = pod.open_or_refuse()
        raw = await read_body(request, pod.options.max_body_bytes)
        loop = asyncio.get_running_loop()
        return json_response(await loop.run_in_executor(pod.threads, made, raw, opened.served))

    @app.post("/tokenize", openapi_extra=_body_schema(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        return await answer(request, tokens.tokenize)

    @app.post("/detokenize", openapi_extra=_body_schema(DetokenizeBody))
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
    async def refused(_: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return error_response(error.error)

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        method, path = request.method, request.url.path
        match error.status_code:
            case 404:
                answer = error_response(openai_errors.no_route(method, path))
            case 405:
                answer = error_response(openai_errors.method_not_allowed(method, path))
            case status:
                answer = error_response(openai_errors.invalid(HTTPStatus(status).phrase, status=status))
        answer.headers.update(error.headers or {})
        return answer


def error_response(error: ApiError) -> Response:
    """An error as a response. After a body that was not read to its end the connection cannot go on."""
    status, document, headers = openai_errors.response(error)
    if status in {408, 413}:
        headers["connection"] = "close"
    return Response(document, status, headers)


def _body_schema(body: type[BaseModel]) -> dict[str, Any]:
    """For /openapi.json: the routes read their bodies themselves."""
    schema = body.model_json_schema()
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
