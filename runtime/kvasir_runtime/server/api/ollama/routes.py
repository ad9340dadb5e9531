"""The routes of Ollama's API. Added to the http app; errors take their shape from the path."""

import time
from collections.abc import Callable
from typing import Any, Final

from fastapi import FastAPI
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from kvasir_api import __version__, http_apis
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.model_profile import ModelProfile, served_name
from kvasir_runtime.frontend.protocol import generation, validation
from kvasir_runtime.frontend.protocol.ignored_fields import only
from kvasir_runtime.frontend.protocol.validation import Raw, StrictModel
from kvasir_runtime.server.api import translation
from kvasir_runtime.server.api.ollama import embedding, model_cards, protocol
from kvasir_runtime.server.api.ollama.embedding import EmbeddingsRequest, EmbedRequest
from kvasir_runtime.server.api.ollama.protocol import ChatRequest, GenerateRequest
from kvasir_runtime.server.api.ollama.serialize import OllamaSerializer, head, message_fields
from kvasir_runtime.server.api.pooling import routes as pooling
from kvasir_runtime.server.api.serving import PreparedRequest, respond, respond_document
from kvasir_runtime.server.app_state import AppState
from kvasir_runtime.server.json_response import body_schema, json_response

PREFIX: Final = "ollama-"
SHOW_HARMLESS: Final = {"verbose": only(False), "system": only(""), "template": only(""), "options": only({})}


class ShowRequest(StrictModel):
    """A body of `/api/show`. name: what older clients call the model."""

    model: str = Field("", max_length=512)
    name: str = Field("", max_length=512)


class NoPrompt(Exception):
    """A request without a prompt only loads the model, which is loaded; document is the answer."""

    def __init__(self, document: dict[str, Any]) -> None:
        super().__init__("nothing asked")
        self.document = document


def add(app: FastAPI, app_state: AppState) -> None:
    """All routes."""

    async def answer(request: Request, prepared: Callable[[Raw, ModelProfile], PreparedRequest]) -> Response:
        try:
            return await respond(request, app_state, prepared)
        except NoPrompt as nothing:
            return json_response(nothing.document)

    @app.post(http_apis.OLLAMA + "/chat", openapi_extra=body_schema(ChatRequest))
    async def chat(request: Request) -> Response:
        return await answer(request, _chat)

    @app.post(http_apis.OLLAMA + "/generate", openapi_extra=body_schema(GenerateRequest))
    async def generate(request: Request) -> Response:
        return await answer(request, _generate)

    @app.post(http_apis.OLLAMA + "/show", openapi_extra=body_schema(ShowRequest))
    async def show(request: Request) -> Response:
        def shown(raw: Raw, profile: ModelProfile) -> dict[str, Any]:
            body = validation.validated(raw, ShowRequest, SHOW_HARMLESS)
            served_name(http_apis.model_name(body.model or body.name, "ollama"), profile)
            return model_cards.show(app_state, app_state.ready_model())

        return await respond_document(request, app_state, shown)

    @app.post(http_apis.OLLAMA + "/embed", openapi_extra=body_schema(EmbedRequest))
    async def embed(request: Request) -> Response:
        began = app_state.clock()
        return await pooling.respond(
            request, app_state, lambda raw, profile: embedding.embed(raw, profile, lambda: app_state.clock() - began)
        )

    @app.post(http_apis.OLLAMA + "/embeddings", openapi_extra=body_schema(EmbeddingsRequest))
    async def embeddings(request: Request) -> Response:
        return await pooling.respond(request, app_state, embedding.embeddings)

    @app.get(http_apis.OLLAMA + "/tags")
    async def tags() -> Response:
        return json_response(model_cards.tags(app_state))

    @app.get(http_apis.OLLAMA + "/ps")
    async def ps() -> Response:
        return json_response(model_cards.running(app_state))

    @app.get(http_apis.OLLAMA + "/version")
    async def version() -> Response:
        return json_response({"version": __version__})


def _chat(raw: Raw, profile: ModelProfile) -> PreparedRequest:
    body = validation.validated(raw, ChatRequest, protocol.CHAT_HARMLESS, protocol.LABELS)
    served_name(body.served_name, profile)
    body.options.check(profile.max_context)
    if not body.messages:
        raise NoPrompt(_loaded(body.model, chat=True))
    chat = translation.chat_body(body.as_chat(profile.defaults), protocol.NAMES)
    return _prepared(
        translation.generation_request(chat, profile, PREFIX, protocol.NAMES, fit=True), body.model, chat=True
    )


def _generate(raw: Raw, profile: ModelProfile) -> PreparedRequest:
    body = validation.validated(raw, GenerateRequest, protocol.GENERATE_HARMLESS, protocol.LABELS)
    served_name(body.served_name, profile)
    body.options.check(profile.max_context)
    if not body.prompt:
        raise NoPrompt(_loaded(body.model, chat=False))
    return _prepared(_generated(body, profile), body.model, chat=False)


def _generated(body: GenerateRequest, profile: ModelProfile) -> GenerationRequest:
    if not body.raw:
        return translation.generation_request(
            translation.chat_body(body.as_chat(profile.defaults), protocol.NAMES),
            profile,
            PREFIX,
            protocol.NAMES,
            fit=True,
        )
    try:
        return prepare.from_body(
            generation.parse_completion(body.as_completion(profile.defaults)), profile, PREFIX, fit=True
        )
    except Refused as refused:
        raise translation.with_own_names(refused, protocol.NAMES) from refused


def _prepared(generation_request: GenerationRequest, model: str, *, chat: bool) -> PreparedRequest:
    return PreparedRequest(
        request=generation_request,
        serializer=lambda generation_request, created, _, labels: OllamaSerializer(
            generation_request, created, labels, model=model, chat=chat
        ),
    )


def _loaded(model: str, *, chat: bool) -> dict[str, Any]:
    return head(model, int(time.time())) | message_fields("", "", [], chat=chat) | {"done": True, "done_reason": "load"}
