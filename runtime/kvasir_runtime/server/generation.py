"""From a request to its answer on the way: what the routes of every surface that generates have in common.

Refuses early and cheaply, prepares in a thread, then checks the queue again with the true number of sequences. The
surfaces say what a body means and how its answer is written; nothing here knows their documents.
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
    """A job and how its answer is written."""

    job: GenerationRequest
    serializer: SerializerOf = OpenAiSerializer


async def respond(
    request: Request,
    pod: AppState,
    prepare: Callable[[bytes, ModelProfile], PreparedRequest],
    *,
    on_end: Callable[[], None] = lambda: None,
) -> GenerationResponse:
    """The answer to a request, ready to be sent. prepare runs in a thread, on_end once at the end. Raises Refused."""
    arrived = pod.clock()
    opened = pod.open_or_refuse()
    check_queue(pod, opened, 1)
    raw = await read_body(request, pod.options.max_body_bytes)
    pod.enter()
    pod.num_preparing += 1
    try:
        loop = asyncio.get_running_loop()
        try:
            prepared = await loop.run_in_executor(pod.threads, prepare, raw, opened.served)
            prepared = replace(prepared, job=await opened.verdicts.checked(prepared.job))
        finally:
            pod.num_preparing -= 1
        pod.open_or_refuse()
        check_queue(pod, opened, len(prepared.job.requests))
    except BaseException:
        pod.leave()
        raise

    def ended() -> None:
        pod.leave()
        on_end()

    labels = TokenLabels(opened.served.tokenizer, as_ids=prepared.job.as_token_ids)
    return GenerationResponse(
        prepared.job,
        prepared.serializer(prepared.job, int(time.time()), opened.fingerprint, labels),
        ServingContext(
            client=opened.client,
            tokenizer=opened.served.tokenizer,
            metrics=pod.metrics,
            registry=pod.running,
            clock=pod.clock,
        ),
        arrived=arrived,
        on_end=ended,
    )


def check_queue(pod: AppState, opened: ServedModel, num_new: int) -> None:
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
