"""The routes of `/v1/responses`. Added to the http app; they own the store and what runs in the background.

Everything but the preparing happens on the event loop. A response is kept from the moment its engine is asked, so that
it can be fetched and cancelled while it is being made.
"""

import asyncio
import re
from typing import Any, Final

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from kvasir_api import http_apis, openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import TokenLabels
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.protocol.validation import ReceivedBody
from kvasir_runtime.server.api.responses import pagination, prepare
from kvasir_runtime.server.api.responses.output_items import Document
from kvasir_runtime.server.api.responses.prepare import PreparedResponse
from kvasir_runtime.server.api.responses.protocol import InputBody, ResponsesBody
from kvasir_runtime.server.api.responses.serialize import ResponsesSerializer
from kvasir_runtime.server.api.responses.store import ResponseStore, StoredResponse, StoreLimits
from kvasir_runtime.server.api.serving import PreparedRequest, respond, respond_document
from kvasir_runtime.server.api.sse import encode
from kvasir_runtime.server.app_state import AppState
from kvasir_runtime.server.json_response import body_schema, json_response
from kvasir_runtime.server.streaming import GenerationResponse
from kvasir_runtime.server.worker_threads import LONG_BYTES

CANCEL_S: Final = 5.0
ONE: Final = http_apis.RESPONSES + "/{response_id}"
_LETTERS: Final = "".join(rf"(?:{letter}|\\u00(?i:{ord(letter):02x}))" for letter in "previous_response_id")
_GOES_ON: Final = re.compile(rf'"{_LETTERS}"\s*+:\s*+(?!null)'.encode())
"""In a body, however it is escaped: it names a response."""


class RunningResponse:
    """One response while it is made: its request, its serializer, and its place in the store."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store
        self.prepared: PreparedResponse | None = None
        self.serializer: ResponsesSerializer | None = None

    def prepare(self, raw: ReceivedBody, profile: ModelProfile) -> PreparedRequest:
        """In a worker thread. Raises Refused."""
        self.prepared = prepare.prepared_response(raw, profile, self._store)
        return PreparedRequest(request=self.prepared.request, serializer=self._make_serializer)

    def begin(self) -> Document:
        """It is about to be sent to the engine: keep it from now on. What it is like now."""
        assert self.serializer is not None
        assert self.prepared is not None
        document = self.serializer.document()
        if self.prepared.stored:
            stored = StoredResponse(
                document=document,
                items=self.prepared.items,
                size_bytes=self.prepared.size_bytes,
                owner=self.prepared.owner,
            )
            self._store.put(document["id"], stored)
        return document

    def left(self) -> None:
        """It ended, or its client went away."""
        if self.serializer is not None:
            self.serializer.left()

    def _make_serializer(
        self, generation_request: GenerationRequest, created: int, _fingerprint: str, labels: TokenLabels
    ) -> ResponsesSerializer:
        assert self.prepared is not None
        repeated = self.prepared.body.repeated(generation_request.requests[0].sampling) | {
            "store": self.prepared.stored
        }
        self.serializer = ResponsesSerializer(generation_request, created, labels, repeated=repeated, keep=self._keep)
        return self.serializer

    def _keep(self, document: Document) -> None:
        assert self.prepared is not None
        if self.prepared.stored:
            self._store.finish(document["id"], document, len(encode(document)))


def _size(raw: bytes) -> int:
    """Of the work that a body is: one that goes on from a response may stand for as much text as was kept of it."""
    return max(len(raw), LONG_BYTES) if _GOES_ON.search(raw) else len(raw)


def add(app: FastAPI, app_state: AppState) -> None:
    """All routes."""
    store = ResponseStore(StoreLimits(max_bytes=app_state.options.stored_response_bytes), app_state.clock)
    background: set[asyncio.Task[None]] = set()

    def found(request: Request, response_id: str) -> StoredResponse:
        stored = store.get(response_id, app_state.senders.identity(request))
        if stored is None:
            raise Refused(openai_errors.response_not_found(response_id))
        return stored

    @app.post(http_apis.RESPONSES, openapi_extra=body_schema(ResponsesBody))
    async def create(request: Request) -> Response:
        response = RunningResponse(store)
        answer = await respond(request, app_state, response.prepare, on_end=response.left, size_of=_size)
        document = response.begin()
        assert response.prepared is not None
        if not response.prepared.body.background:
            return answer
        task = asyncio.create_task(_alone(answer))
        background.add(task)
        task.add_done_callback(background.discard)
        return json_response(document | {"status": "queued"})

    @app.post(http_apis.RESPONSES + "/input_tokens", openapi_extra=body_schema(InputBody))
    async def input_tokens(request: Request) -> Response:
        return await respond_document(
            request, app_state, lambda raw, profile: prepare.counted(raw, profile, store), size_of=_size
        )

    @app.get(ONE)
    async def retrieve(request: Request, response_id: str) -> Response:
        pagination.check_query(request.query_params.multi_items())
        return json_response(found(request, response_id).document)

    @app.delete(ONE)
    async def delete(request: Request, response_id: str) -> Response:
        stored = found(request, response_id)
        app_state.registry.abort(response_id, stored.owner)
        store.delete(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @app.post(ONE + "/cancel")
    async def cancel(request: Request, response_id: str) -> Response:
        stored = found(request, response_id)
        if stored.open:
            app_state.registry.abort(response_id, stored.owner)
            await _until_ended(stored)
        elif stored.document["status"] != "cancelled":
            message = f"The response {openai_errors.quoted(response_id)} is {stored.document['status']} already."
            raise Refused(openai_errors.invalid(message, param="response_id", code="invalid_value"))
        return json_response(stored.document)

    @app.get(ONE + "/input_items")
    async def input_items(request: Request, response_id: str) -> Response:
        query = request.query_params.multi_items()
        return json_response(pagination.page(found(request, response_id).items, query))


async def _alone(answer: GenerationResponse) -> None:
    """Make a response without a client; its serializer keeps the documents."""

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def send(_message: Any) -> None: ...

    await answer({"type": "http", "state": {}}, receive, send)


async def _until_ended(stored: StoredResponse) -> None:
    """It takes a turn of the loop, unless its client reads slowly."""
    try:
        async with asyncio.timeout(CANCEL_S):
            while stored.open:  # noqa: ASYNC110 - ended by a task that knows nothing of who waits
                await asyncio.sleep(0.005)
    except TimeoutError:
        pass
