"""Requests about what one replica holds: a stored response, or answers that are being written. Pure.

Ids of answers begin with the name of the process that writes them, so that every gateway finds it by its readings.
"""

from dataclasses import dataclass

import msgspec

from kvasir_api import http_apis, openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_gateway.picker import request_parser
from kvasir_gateway.picker.request_parser import ImmediateResponse

MOST_IDS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldIds:
    """ids: what a request is about. missing: the error where no replica holds any. nothing: the whole answer then.
    aborts: it ends running answers, which takes nothing of an engine."""

    ids: tuple[str, ...]
    missing: ApiError
    nothing: ImmediateResponse
    aborts: bool = False

    def unheld(self, replicas: int, refusal: ApiError, path: str) -> ImmediateResponse:
        """The answer where not one replica alone holds them. replicas: that do, of services that the caller may use.
        refusal: where none does; `missing`, or that a key is needed."""
        if replicas:
            message = f"The requests run at {replicas} replicas: abort each by a call of its own."
            refusal = openai_errors.invalid(message, param="request_ids")
        return self.nothing if refusal is self.missing else request_parser.error_response(refusal, path)


class _AbortBody(msgspec.Struct):
    """As vLLM and SGLang have it; what else it has is for the pod to judge."""

    request_ids: list[str] = msgspec.field(default_factory=list)
    rid: str | None = None


def held_ids(path: str, body: bytes) -> HeldIds | ImmediateResponse | None:
    """None for a request that any replica may answer. path: without its query."""
    if path in http_apis.ABORTS:
        return _aborted(path, body)
    if response_id := http_apis.stored_response_id(path):
        return _held(response_id, openai_errors.response_not_found(response_id), path)
    chat_id = http_apis.running_chat_id(path)
    return _held(chat_id, openai_errors.answer_not_running(chat_id), path) if chat_id else None


def _held(held_id: str, missing: ApiError, path: str) -> HeldIds:
    return HeldIds(ids=(held_id,), missing=missing, nothing=request_parser.error_response(missing, path))


def _aborted(path: str, body: bytes) -> HeldIds | ImmediateResponse:
    """An id that is not running is no error, as at the pod."""
    try:
        found = msgspec.json.decode(body, type=_AbortBody)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        message = "The body is an object with `request_ids`, a list of ids, or with `rid`, one id."
        return request_parser.error_response(openai_errors.invalid(message, param="request_ids"), path)
    ids = tuple(dict.fromkeys([*found.request_ids, *([found.rid] if found.rid else [])]))
    if not 0 < len(ids) <= MOST_IDS:
        message = f"The body names {len(ids)} requests; one to {MOST_IDS} can be aborted by their ids."
        return request_parser.error_response(openai_errors.invalid(message, param="request_ids"), path)
    headers = {"content-type": "application/json"}
    nothing = ImmediateResponse(status=200, body=b'{"num_aborted":0}', headers=headers, details="nothing_aborted")
    return HeldIds(ids=ids, missing=openai_errors.answer_not_running(ids[0]), nothing=nothing, aborts=True)
