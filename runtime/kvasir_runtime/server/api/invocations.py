"""`/invocations`, the one route of Amazon SageMaker's containers: a body of any API with one document as its answer.

The fields of the body tell which API it is meant for; its own route then answers it.
"""

from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol import validation
from kvasir_runtime.server.api.openai.routes import complete
from kvasir_runtime.server.api.pooling import prepare as pooling
from kvasir_runtime.server.api.pooling.routes import respond
from kvasir_runtime.server.api.serving import client_of
from kvasir_runtime.server.app_state import AppState
from kvasir_runtime.server.body_reader import read_body

POOLED: Final = {
    "input": pooling.embeddings,
    "query": pooling.ranking,
    "text_1": pooling.scores,
    "queries": pooling.scores,
    "data_1": pooling.scores,
}
PROPERTIES: Final[dict[str, Any]] = {name: {} for name in ("messages", "prompt", *POOLED)}
CONTENT: Final = {"application/json": {"schema": {"title": "Invocation", "type": "object", "properties": PROPERTIES}}}


def add(app: FastAPI, app_state: AppState) -> None:
    """Add it to the http port."""

    @app.post("/invocations", openapi_extra={"requestBody": {"required": True, "content": CONTENT}})
    async def invocations(request: Request) -> Response:
        raw = await read_body(request, app_state.options.max_body_bytes)

        async def replayed() -> Message:
            return {"type": "http.request", "body": raw, "more_body": False}

        again = Request(request.scope, replayed)
        client = client_of(request, app_state.senders.identity(request))
        fields = await app_state.threads.run(_fields, raw, size_bytes=len(raw), client=client)
        if "messages" in fields:
            return await complete(again, app_state, chat=True)
        if "prompt" in fields:
            return await complete(again, app_state, chat=False)
        for name, prepared in POOLED.items():
            if name in fields:
                return await respond(again, app_state, prepared)
        message = "The body must have messages, prompt, input, query with documents, or text_1 with text_2."
        raise Refused(openai_errors.invalid(message, code="missing_required_parameter"))


def _fields(raw: bytes) -> frozenset[str]:
    document: dict[str, Any] = validation.decoded(raw)
    return frozenset(name for name, value in document.items() if value is not None)
