"""The routes of Anthropic's API. Added to the http app; errors take their shape from the path."""

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from kvasir_api import http_apis
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.protocol.validation import Raw
from kvasir_runtime.server.api import translation
from kvasir_runtime.server.api.anthropic import protocol
from kvasir_runtime.server.api.anthropic.protocol import CountTokensBody, MessagesBody
from kvasir_runtime.server.api.anthropic.serialize import MessagesSerializer
from kvasir_runtime.server.api.serving import PreparedRequest, respond, respond_document
from kvasir_runtime.server.app_state import AppState
from kvasir_runtime.server.json_response import body_schema


def add(app: FastAPI, app_state: AppState) -> None:
    """Both routes."""

    @app.post(http_apis.ANTHROPIC, openapi_extra=body_schema(MessagesBody))
    async def messages(request: Request) -> Response:
        return await respond(request, app_state, _prepare)

    @app.post(http_apis.ANTHROPIC + "/count_tokens", openapi_extra=body_schema(CountTokensBody))
    async def count_tokens(request: Request) -> Response:
        return await respond_document(request, app_state, protocol.counted)


def _prepare(raw: Raw, profile: ModelProfile) -> PreparedRequest:
    body, chat = protocol.parsed(raw)
    generation_request = translation.generation_request(chat, profile, "msg_", body.names, fit=True)
    shows = body.thinking is None or body.thinking.display != "omitted"
    return PreparedRequest(
        request=generation_request,
        serializer=lambda generation_request, *_: MessagesSerializer(
            generation_request, max_tokens=body.max_tokens, shows_thinking=shows
        ),
    )
