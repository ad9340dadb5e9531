"""From an HTTP request to its response: the steps that the generating routes of every API share.

Rejects early and cheaply, prepares in a thread, then checks the queue again with the true number of sequences. Each
API passes its own preparation and serializer; nothing here knows their documents.
"""

import asyncio
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from starlette.requests import Request

from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import TokenLabels
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.server.admission import queue_refusal
from kvasir_runtime.server.api.openai.serialize import OpenAiSerializer
from kvasir_runtime.server.api.serializer import Serializer
from kvasir_runtime.server.app_state import AppState, ServedModel
from kvasir_runtime.server.body_reader import read_body
from kvasir_runtime.server.output_collector import ServingContext
from kvasir_runtime.server.streaming import GenerationResponse

SerializerOf = Callable[[GenerationRequest, int, str, TokenLabels], Serializer]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request and how its answer is written."""

    request: GenerationRequest
    serializer: SerializerOf = OpenAiSerializer


async def respond(
    request: Request,
    app_state: AppState,
    prepare: Callable[[bytes, ModelProfile], PreparedRequest],
    *,
    on_end: Callable[[], None] = lambda: None,
) -> GenerationResponse:
    """The response to a request. prepare runs in a thread, on_end is called once at the end. Raises Refused."""
    arrived = app_state.clock()
    served_model = app_state.ready_model()
    check_queue(app_state, served_model, 1)
    raw = await read_body(request, app_state.options.max_body_bytes)
    app_state.begin_request()
    app_state.num_preparing += 1
    try:
        loop = asyncio.get_running_loop()
        try:
            prepared = await loop.run_in_executor(app_state.threads, prepare, raw, served_model.profile)
            prepared = replace(prepared, request=await served_model.grammar_validator.checked(prepared.request))
        finally:
            app_state.num_preparing -= 1
        app_state.ready_model()
        check_queue(app_state, served_model, len(prepared.request.requests))
    except BaseException:
        app_state.end_request()
        raise

    def ended() -> None:
        app_state.end_request()
        on_end()

    labels = TokenLabels(served_model.profile.tokenizer, as_ids=prepared.request.as_token_ids)
    return GenerationResponse(
        prepared.request,
        prepared.serializer(prepared.request, int(time.time()), served_model.fingerprint, labels),
        ServingContext(
            client=served_model.client,
            tokenizer=served_model.profile.tokenizer,
            metrics=app_state.metrics,
            registry=app_state.registry,
            clock=app_state.clock,
        ),
        arrived=arrived,
        on_end=ended,
    )


def check_queue(app_state: AppState, served_model: ServedModel, num_new: int) -> None:
    """Raises Refused where the queue is full. Requests in threads count: a burst that is tokenized must not pass the
    bound."""
    refusal = queue_refusal(
        served_model.client.state,
        inflight=served_model.client.num_inflight + app_state.num_preparing + num_new,
        max_sequences=served_model.max_sequences,
        max_waiting=app_state.options.max_waiting,
        jitter=random.random(),
    )
    if refusal is not None:
        raise Refused(refusal)
