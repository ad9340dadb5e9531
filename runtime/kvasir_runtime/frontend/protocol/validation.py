"""Reads a body into a model, or refuses it by the name of the field at fault.

Called with the raw bytes, or with a document that another API's body was translated into. null means absent; a field
that has no effect is in ignored_fields.py; any other unknown field is refused, because an ignored misspelling of
max_tokens is worse than an error.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, from_json

from kvasir_api import openai_errors
from kvasir_api.openai_errors import quoted
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol import ignored_fields

_Model = TypeVar("_Model", bound=BaseModel)
Raw = bytes | dict[str, Any]
"""A body as it came, or as it was decoded."""
Table = Mapping[str, tuple[Callable[[Any], bool], str]]


class StrictModel(BaseModel):
    """JSON types are taken literally: "5" is no number and true is none either."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def decoded(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises Refused."""
    try:
        document = from_json(raw, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise Refused(openai_errors.invalid(f"The body is not valid JSON: {error}", code="invalid_json")) from error
    if not isinstance(document, dict):
        raise Refused(openai_errors.invalid("The body must be a JSON object.", code="invalid_json"))
    return document


def validated(raw: Raw, model: type[_Model], table: Table, labels: Collection[str] = ignored_fields.LABELS) -> _Model:
    """The body as a model. table: fields without effect, their harmless values; labels: any value. Raises Refused."""
    document = decoded(raw) if isinstance(raw, bytes) else raw
    fields = {}
    for name, value in document.items():
        if value is None or name in labels:
            continue
        if name in table:
            harmless, names = table[name]
            if not harmless(value):
                message = f"{quoted(name)} is not supported here; only {names} is accepted."
                raise Refused(openai_errors.invalid(message, param=name, code="unsupported_parameter"))
            continue
        fields[name] = value
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise _translated(error.errors(include_url=False, include_context=False, include_input=False)[0]) from error


def _translated(detail: ErrorDetails) -> Refused:
    param = _path(detail["loc"])
    if not param:  # the body as a whole
        return Refused(openai_errors.invalid(f"The body {detail['msg']}.", code="invalid_value"))
    match detail["type"]:
        case "extra_forbidden":
            return refusal(f"Unrecognized request argument: {quoted(param)}.", param, "unknown_parameter")
        case "missing":
            return refusal(f"Missing required parameter: {quoted(param)}.", param, "missing_required_parameter")
        case _:
            return refusal(f"Invalid {quoted(param)}: {detail['msg']}.", param, "invalid_value")


def _path(location: tuple[int | str, ...]) -> str:
    """messages[0].content, as OpenAI writes it; a client's names in it are bounded."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path[:200]


def refusal(message: str, param: str, code: str = "invalid_value") -> Refused:
    """The error of a field that is wrong."""
    return Refused(openai_errors.invalid(message, param=param, code=code))
