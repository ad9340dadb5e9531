"""Envoy's local replies in OpenAI's format: no connection to a pod, a broken one, a body too large.

Pure data for the bootstrap. The picker's own error responses have a body and no response flag: no mapper matches them.
"""

from typing import Any

from kvasir_api import names, openai_errors
from kvasir_api.openai_errors import ApiError

Config = dict[str, Any]
RETRY_AFTER_S = 1.0
MAX_HEADERS_BYTES = 60 << 10
"""Envoy's own limit of a request's headers."""
UNREAD: Config = {
    "header_filter": {"header": {"name": names.HEADER_INFLIGHT_ID, "present_match": True, "invert_match": True}}
}
"""Requests that are refused before they have got their id: for want of memory, which has no flag."""


def mappers(max_body_bytes: int) -> Config:
    """The `local_reply_config`: the first match applies."""
    unreachable = openai_errors.unavailable(
        "No replica answered: the connection failed or broke before an answer began. Try again.",
        retry_after_s=RETRY_AFTER_S,
        code="upstream_unavailable",
    )
    no_picker = openai_errors.unavailable(
        "The gateway cannot choose a replica now. Try again.", retry_after_s=RETRY_AFTER_S, code="gateway_unavailable"
    )
    full = openai_errors.unavailable(
        "The gateway has no memory for another request now. Try again.",
        retry_after_s=RETRY_AFTER_S,
        code="gateway_unavailable",
    )
    late = openai_errors.timed_out("The answer took longer than the service allows, or was silent for too long.")
    slow = openai_errors.invalid("The request did not arrive in time.", code="request_timeout")
    headers = openai_errors.invalid(
        f"The request headers are larger than {MAX_HEADERS_BYTES} bytes.", code="headers_too_large"
    )
    malformed = openai_errors.invalid("This is not a well-formed HTTP request.", code="malformed_request")
    return {
        "mappers": [
            _mapper(_status(413), openai_errors.body_too_large(max_body_bytes)),
            _mapper(_status(408), slow),
            _mapper(_status(431), headers),
            _mapper(_all(_status(503), UNREAD), full),
            _mapper(_all(_status(400), _flags("DPE", "IH")), malformed),
            _mapper(_flags("UT", "SI"), late),
            _mapper(_flags("UH", "UF", "UC", "UR", "URX", "LR", "UO", "NC", "NR", "UPE", "OM"), unreachable),
            _mapper(_any(_status(500), _status(504)), no_picker),  # it is not there, or silent
        ]
    }


def _status(code: int) -> Config:
    comparison = {"op": "EQ", "value": {"default_value": code, "runtime_key": f"kvasir.reply.{code}"}}
    return {"status_code_filter": {"comparison": comparison}}


def _flags(*flags: str) -> Config:
    return {"response_flag_filter": {"flags": list(flags)}}


def _all(*filters: Config) -> Config:
    return {"and_filter": {"filters": list(filters)}}


def _any(*filters: Config) -> Config:
    return {"or_filter": {"filters": list(filters)}}


def _mapper(found: Config, error: ApiError) -> Config:
    status, body, headers = openai_errors.response(error)
    added = [
        {"header": {"key": key, "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        for key, value in headers.items()
        if key not in {"content-type", "content-length"}
    ]
    return {
        "filter": found,
        "status_code": status,
        "headers_to_add": added,
        "body_format_override": {
            "text_format_source": {"inline_string": body.decode().replace("%", "%%")},
            "content_type": headers["content-type"],
        },
    }
