"""From an HTTP request to its response: what the routes of all APIs have in common.

Refuses early and cheaply, prepares in a thread, then checks the queue again with the true number of sequences. Each API
decides what a body means and how its answer is written; its documents are not known here.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kvasir_api import names, openai_errors
from kvasir_runtime.frontend.continuation import TokenSigner
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.logprobs import TokenLabels
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.protocol.validation import ReceivedBody
from kvasir_runtime.server.admission import has_place_by_share, queue_refusal
from kvasir_runtime.server.api.openai.serialize import OpenAiSerializer
from kvasir_runtime.server.api.serializer import Serializer
from kvasir_runtime.server.app_state import AppState, ServedModel
from kvasir_runtime.server.body_reader import read_body
from kvasir_runtime.server.output_collector import ServingContext
from kvasir_runtime.server.streaming import GenerationResponse

_Prepared = TypeVar("_Prepared")
_NO_KEYS_YET: Final = openai_errors.unavailable(
    "This replica has not got the keys of continuation tokens yet.", retry_after_s=1.0, code="no_continuation_keys"
)
SerializerOf = Callable[[GenerationRequest, int, str, TokenLabels], Serializer]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A request and how its answer is written."""

    request: GenerationRequest
    serializer: SerializerOf = OpenAiSerializer


async def respond(
    request: Request,
    app_state: AppState,
    prepare: Callable[[ReceivedBody, ModelProfile], PreparedRequest],
    *,
    on_end: Callable[[], None] = lambda: None,
    size_of: Callable[[bytes], int] = len,
) -> GenerationResponse:
    """The answer to a request, ready to be sent. prepare runs in a thread, on_end once at the end. Raises Refused.

    size_of: a body as large as the work that it is.
    """
    arrived = app_state.clock()

    async def work(raw: ReceivedBody, served_model: ServedModel) -> PreparedRequest:
        raw.takes_continuation = True
        prepared = await in_thread(request, app_state, prepare, raw, served_model.profile, size_of=size_of)
        checked = await served_model.grammar_validator.checked(prepared.request)
        if raw.continuation:
            if app_state.continuation_keys.awaited:
                raise Refused(_NO_KEYS_YET)
            signer = token_signer(app_state, served_model, app_state.senders.identity(request))
            return replace(prepared, request=await asyncio.to_thread(signer.resumed, checked, raw.continuation))
        return replace(prepared, request=replace(checked, created=int(time.time())))

    prepared, served_model = await admit(request, app_state, work, lambda prepared, _: len(prepared.request.requests))

    def ended() -> None:
        app_state.end_request()
        on_end()

    if app_state.options.speculation != "off" and any(one.beam is not None for one in prepared.request.requests):
        request.scope["state"]["no_drafts"] = ("beam search",)
    labels = TokenLabels(served_model.profile.tokenizer, as_ids=prepared.request.as_token_ids)
    serializer = prepared.serializer(prepared.request, prepared.request.created, served_model.fingerprint, labels)
    context = serving_context(request, app_state, served_model)
    return GenerationResponse(prepared.request, serializer, context, arrived=arrived, on_end=ended)


async def respond_document(
    request: Request,
    app_state: AppState,
    made: Callable[[ReceivedBody, ModelProfile], Any],
    *,
    size_of: Callable[[bytes], int] = len,
) -> Response:
    """A document that needs no engine. made runs in a thread. size_of: as of respond(). Raises Refused."""
    served_model = app_state.ready_model()
    raw = await _received(request, app_state)

    def encoded(raw: ReceivedBody, profile: ModelProfile) -> bytes:
        return msgspec.json.encode(made(raw, profile))

    document = await in_thread(request, app_state, encoded, raw, served_model.profile, size_of=size_of)
    return Response(document, media_type="application/json")


async def admit(
    request: Request,
    app_state: AppState,
    work: Callable[[ReceivedBody, ServedModel], Awaitable[_Prepared]],
    num_sequences: Callable[[_Prepared, ServedModel], int],
) -> tuple[_Prepared, ServedModel]:
    """What work made of the body. It counts as active from here on, until app_state.end_request(). Raises Refused.

    num_sequences: that are sent to the engine at a time.
    """
    served_model = app_state.ready_model()
    check_queue(request, app_state, served_model, 1)
    raw = await _received(request, app_state)
    check_queue(request, app_state, served_model, 1)  # others came while the body did
    sender = app_state.senders.of(request)
    app_state.begin_request()
    app_state.preparing.add(sender.tenant, sender.weight)
    try:
        try:
            prepared = await work(raw, served_model)
        finally:
            app_state.preparing.end(sender.tenant)
        app_state.ready_model()
        check_queue(request, app_state, served_model, num_sequences(prepared, served_model))
    except BaseException:
        app_state.end_request()
        raise
    return prepared, served_model


async def _received(request: Request, app_state: AppState) -> ReceivedBody:
    """The body. Its fields that have no effect are named in the response's head and in the log."""
    raw = await read_body(request, app_state.options.max_body_bytes)
    body = ReceivedBody(raw, strict=app_state.options.strict_fields)
    request.scope["state"]["ignored_fields"] = body.ignored
    return body


async def in_thread(
    request: Request,
    app_state: AppState,
    prepare: Callable[[ReceivedBody, ModelProfile], _Prepared],
    raw: ReceivedBody,
    profile: ModelProfile,
    *,
    size_of: Callable[[bytes], int] = len,
) -> _Prepared:
    """What prepare makes of a body, beside the event loop; a long body waits for its client's turn."""
    size_bytes = size_of(raw.raw)
    sender = app_state.senders.of(request)
    if sender.priority is not None and sender.priority < sender.most_urgent:
        message = f"The header {names.HEADER_PRIORITY} is at least {sender.most_urgent} here."
        raw.ignore(names.HEADER_PRIORITY, message, "unsupported_parameter")
    profile = replace(profile, sender=sender, ignore=raw.ignore_without_effect)
    request.scope["state"]["tenant"] = sender.tenant
    return await app_state.threads.run(
        prepare, raw, profile, size_bytes=size_bytes, client=client_of(request, sender.identity)
    )


def client_of(request: Request, identity: bytes) -> str:
    """Who sends a request, as far as taking turns goes: the tenant, or an address where there is none."""
    address = request.client.host if request.client is not None else ""
    return identity.hex() or address


def serving_context(request: Request, app_state: AppState, served_model: ServedModel) -> ServingContext:
    """What the response to a request needs. Prompts are noted only for replicas that may read them."""
    noted = app_state.options.prefix_cache and app_state.options.prefix_warmup_seconds > 0
    owner = app_state.senders.identity(request)
    signer = token_signer(app_state, served_model, owner)
    return ServingContext(
        client=served_model.client,
        tokenizer=served_model.profile.tokenizer,
        metrics=app_state.metrics,
        registry=app_state.registry,
        owner=owner,
        clock=app_state.clock,
        on_submit=app_state.hot_prefixes.note if noted else lambda _: None,
        signer=signer if signer.keys else None,
        pieces=request.headers.get(names.HEADER_CONTINUATION) == "pieces",
    )


def token_signer(app_state: AppState, served_model: ServedModel, owner: bytes) -> TokenSigner:
    """Of continuation tokens. owner: identity of the requests' tenant."""
    return TokenSigner(keys=app_state.continuation_keys.current, model=served_model.digest, tenant=owner)


def check_queue(request: Request, app_state: AppState, served_model: ServedModel, num_new: int) -> None:
    """Requests in threads count too: a burst must not get past the bound while it is tokenized. Raises Refused."""
    client = served_model.client
    refusal = queue_refusal(
        client.state,
        inflight=client.num_inflight + app_state.preparing.num_open + num_new,
        max_sequences=served_model.max_sequences,
        max_waiting=app_state.options.max_waiting,
        jitter=random.random(),
    )
    if refusal is None:
        return
    sender, places = app_state.senders.of(request), served_model.max_sequences + app_state.options.max_waiting
    loads = app_state.preparing.beside(client.load_by_tenant)
    if not has_place_by_share(loads, sender.tenant, sender.weight, num_new=num_new, places=places):
        raise Refused(refusal)
