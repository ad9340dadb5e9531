"""From the bytes of a request for a response to its job: the conversation before it, its chat, and cutting it to fit.

Called in a worker thread. It reads the store and never writes it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.generation_request import GenerationRequest
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.protocol import validation
from kvasir_runtime.frontend.protocol.validation import ReceivedBody
from kvasir_runtime.server.api import translation
from kvasir_runtime.server.api.responses.items import Item, identified
from kvasir_runtime.server.api.responses.protocol import HARMLESS, LABELS, NAMES, InputBody, ResponsesBody
from kvasir_runtime.server.api.responses.store import ResponseStore

PREFIX: Final = "resp_"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedResponse:
    """A request for a response that can be served. items: of the whole conversation; size_bytes: of them, roughly.

    owner: identity of its tenant.
    """

    body: ResponsesBody
    request: GenerationRequest
    items: list[Item]
    size_bytes: int
    stored: bool
    owner: bytes


def prepared_response(raw: ReceivedBody, profile: ModelProfile, store: ResponseStore) -> PreparedResponse:
    """Parse, find the conversation, translate, and cut if truncation is auto. Raises Refused."""
    body = validation.validated(raw, ResponsesBody, HARMLESS, LABELS)
    stored = body.store is not False and store.keeps
    _check(body, stored=stored, keeps=store.keeps)
    before, size_bytes = _before(body, store, profile.sender.identity)
    generation_request = _fitting(body, [*before, *body.input], lambda kept: _job(body, kept, profile))
    return PreparedResponse(
        body=body,
        request=generation_request,
        items=[*before, *identified(body.input, generation_request.answer_id.removeprefix(PREFIX))],
        size_bytes=size_bytes + len(raw.raw),
        stored=stored,
        owner=profile.sender.identity,
    )


def counted(raw: ReceivedBody, profile: ModelProfile, store: ResponseStore) -> dict[str, object]:
    """The answer of `/v1/responses/input_tokens`. Raises Refused."""
    body = validation.validated(raw, InputBody, HARMLESS, LABELS)
    before, _ = _before(body, store, profile.sender.identity)
    chat = translation.chat_body(body.as_chat([*before, *body.input]), NAMES)
    return {"object": "response.input_tokens", "input_tokens": translation.prompt_tokens(chat, profile, NAMES)}


def _job(body: ResponsesBody, conversation: list[Item], profile: ModelProfile) -> GenerationRequest:
    return translation.generation_request(
        translation.chat_body(body.as_chat(conversation), NAMES), profile, PREFIX, NAMES
    )


def _check(body: ResponsesBody, *, stored: bool, keeps: bool) -> None:
    if body.store and not keeps:
        raise _refused("`store` is not supported here: this server keeps no responses.", "store")
    if body.background and not stored:
        raise _refused("`background` needs `store`.", "background")
    if body.background and body.stream:
        raise _refused(
            "`background` with `stream` is not supported here: ask for the response by its id.", "background"
        )
    if body.top_logprobs and not body.include:
        message = "`top_logprobs` needs `include` with message.output_text.logprobs."
        raise Refused(openai_errors.invalid(message, param="top_logprobs", code="invalid_value"))


def _refused(message: str, param: str) -> Refused:
    return Refused(openai_errors.invalid(message, param=param, code="unsupported_parameter"))


def _before(body: InputBody, store: ResponseStore, owner: bytes) -> tuple[list[Item], int]:
    """The conversation that the body goes on with, and its size."""
    name = body.previous_response_id
    if name is None:
        return [], 0
    found = store.get(name, owner)
    if found is None or found.open:
        why = "not found" if found is None else "not finished"
        message = f"The previous response {openai_errors.quoted(name)} is {why} here."
        raise Refused(openai_errors.invalid(message, param="previous_response_id", code="previous_response_not_found"))
    return found.conversation, found.size_bytes


def _fitting(
    body: ResponsesBody, conversation: list[Item], generation_request: Callable[[list[Item]], GenerationRequest]
) -> GenerationRequest:
    """The job with as much of the conversation as fits, if truncation is auto.

    Only whole turns are left out, from the first on, so that no result of a call loses its call.
    """
    try:
        return generation_request(conversation)
    except Refused as refused:
        cuts = [place for place, item in enumerate(conversation) if place and item.get("role") == "user"]
        if body.truncation != "auto" or refused.error.code != "context_length_exceeded" or not cuts:
            raise
    low, high = 0, len(cuts) - 1
    found: GenerationRequest | None = None
    while low <= high:
        middle = (low + high) // 2
        try:
            found, high = generation_request(conversation[cuts[middle] :]), middle - 1
        except Refused as refused:
            if refused.error.code != "context_length_exceeded":
                raise
            low = middle + 1
    return found if found is not None else generation_request(conversation[cuts[-1] :])
