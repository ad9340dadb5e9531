"""Bodies of the routes that abort requests by id, in vLLM's form and in SGLang's.

Called by the routes. An id is that of an answer (`chatcmpl-…`), or the `x-request-id` that the client sent with it.
"""

from typing import Annotated, Final

from pydantic import Field

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol import validation
from kvasir_runtime.frontend.protocol.validation import Raw, StrictModel

MAX_IDS: Final = 4096
Id = Annotated[str, Field(min_length=1, max_length=256)]


class AbortBody(StrictModel):
    """`/abort_requests`, as in vLLM."""

    request_ids: list[Id] = Field(max_length=MAX_IDS)


class AbortOneBody(StrictModel):
    """`/abort_request`, as in SGLang. abort_all would end the requests of all clients, so only false is accepted."""

    rid: Id | None = None
    abort_all: bool = False


def of_vllm(raw: Raw) -> list[str]:
    """The ids. Raises Refused."""
    return validation.validated(raw, AbortBody, {}).request_ids


def of_sglang(raw: Raw) -> list[str]:
    """The id. Raises Refused."""
    body = validation.validated(raw, AbortOneBody, {})
    if body.abort_all:
        message = "`abort_all` is not supported here: it would end the requests of other clients too."
        raise Refused(openai_errors.invalid(message, param="abort_all", code="unsupported_parameter"))
    if body.rid is None:
        raise Refused(
            openai_errors.invalid("Missing required parameter: `rid`.", param="rid", code="missing_required_parameter")
        )
    return [body.rid]
