"""Routes of OpenAI's API and of vLLM's additions: completions, chats, tool results, aborts, tokens, models.

Routes are thin: a body becomes a generation request in a worker thread, and its response is returned.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from kvasir_api import http_apis, openai_errors
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend import tool_results as results
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol.generation import ChatBody, CompletionBody
from kvasir_runtime.frontend.tool_results import ToolResultsBody
from kvasir_runtime.server.api.openai import abort
from kvasir_runtime.server.api.openai import tokenize as tokenization
from kvasir_runtime.server.api.openai.abort import AbortBody, AbortOneBody
from kvasir_runtime.server.api.openai.tokenize import DetokenizeBody, TokenizeBody
from kvasir_runtime.server.api.serving import PreparedRequest, client_of, respond, respond_document
from kvasir_runtime.server.app_state import AppState
from kvasir_runtime.server.body_reader import read_body
from kvasir_runtime.server.json_response import body_schema, json_response
from kvasir_runtime.server.tool_result_stream import ToolResultCollector

MAX_ABORT_BYTES: Final = 2 << 20
"""Of a body of ids, which is read on the event loop."""


def add(app: FastAPI, app_state: AppState) -> None:
    """Add all of them."""
    _add_generation(app, app_state)
    _add_tokens(app, app_state)
    _add_models(app, app_state)


async def complete(request: Request, app_state: AppState, *, chat: bool) -> Response:
    """The answer to a chat, or to a completion. Raises Refused."""
    return await respond(
        request,
        app_state,
        lambda raw, profile: PreparedRequest(request=prepare.from_bytes(raw, profile, chat=chat)),
    )


def _add_generation(app: FastAPI, app_state: AppState) -> None:
    @app.post("/v1/completions", openapi_extra=body_schema(CompletionBody))
    async def completions(request: Request) -> Response:
        return await complete(request, app_state, chat=False)

    @app.post("/v1/chat/completions", openapi_extra=body_schema(ChatBody))
    async def chat_completions(request: Request) -> Response:
        return await complete(request, app_state, chat=True)

    @app.post("/v1/chat/completions/{answer_id}/tool_results", openapi_extra=body_schema(ToolResultsBody))
    async def tool_results(answer_id: str, request: Request) -> Response:
        raw = await read_body(request, app_state.options.max_body_bytes)
        owner = app_state.senders.identity(request)
        client = client_of(request, owner)
        body = await app_state.threads.run(results.parse, raw, size_bytes=len(raw), client=client)
        found = app_state.registry.find(answer_id, owner)
        answer = next((one for one in found if isinstance(one, ToolResultCollector)), None)
        if answer is None:
            raise Refused(openai_errors.answer_not_running(answer_id))
        accepted = await answer.add_results(body.results)
        return json_response({"id": answer_id, "object": "chat.completion.tool_results", "accepted": accepted})

    @app.post("/abort_requests", openapi_extra=body_schema(AbortBody))
    async def abort_requests(request: Request) -> Response:
        return await _abort(request, abort.of_vllm)

    @app.post("/abort_request", openapi_extra=body_schema(AbortOneBody))
    async def abort_request(request: Request) -> Response:
        return await _abort(request, abort.of_sglang)

    async def _abort(request: Request, ids_of: Callable[[bytes], Sequence[str]]) -> Response:
        raw = await read_body(request, min(MAX_ABORT_BYTES, app_state.options.max_body_bytes))
        owner = app_state.senders.identity(request)
        return json_response({"num_aborted": sum(app_state.registry.abort(one, owner) for one in ids_of(raw))})


def _add_tokens(app: FastAPI, app_state: AppState) -> None:
    @app.post("/tokenize", openapi_extra=body_schema(TokenizeBody))
    async def tokenize(request: Request) -> Response:
        return await respond_document(request, app_state, tokenization.tokenize)

    @app.get("/tokenizer_info")
    async def tokenizer_info() -> Response:
        served_model = app_state.ready_model()
        return json_response(await asyncio.to_thread(tokenization.info, served_model.profile, served_model.folder))

    @app.post("/detokenize", openapi_extra=body_schema(DetokenizeBody))
    async def detokenize(request: Request) -> Response:
        return await respond_document(request, app_state, tokenization.detokenize)


def _add_models(app: FastAPI, app_state: AppState) -> None:
    def document(name: str) -> dict[str, Any]:
        limit = app_state.served_model.profile.max_context if app_state.served_model is not None else None
        card = http_apis.model_card(name, app_state.created)
        return card | {"root": app_state.names[0], "parent": None, "max_model_len": limit, "max_input_tokens": limit}

    @app.get("/v1/models")
    async def models() -> Response:
        return json_response(http_apis.model_list([document(name) for name in app_state.names]))

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name not in app_state.names and name != app_state.options.model:
            raise Refused(openai_errors.model_not_found(name))
        return json_response(document(name))
