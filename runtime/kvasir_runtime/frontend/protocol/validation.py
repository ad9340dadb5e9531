"""Reads a body into a model, or refuses it by the name of the field at fault.

Called with a body as it came, or with a document that another API's body was translated into. null means absent. Fields
that are unknown, or known to have no effect here, are left out and named to the client; with --strict-fields they are
refused. A document of our own making is always strict.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo
from pydantic_core import ErrorDetails, from_json

from kvasir_api import openai_errors
from kvasir_api.openai_errors import quoted
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol import ignored_fields

_Model = TypeVar("_Model", bound=BaseModel)
MAX_COMMAS = 1 << 19
MAX_BRACKETS = 1 << 17
"""In a body, those of its texts included: about 40 ms of decoding."""
MAX_NAMES = 1 << 16
"""Names of fields in a body, those of JSON in its texts included: each is a text to be made and a place to be found."""
WIDE_NUMBER = b"0" * 19
"""Digits from which a number no longer fits into 64 bits, and counts as a value more for each as many."""
LONG_NUMBER = b"0" * 100
"""Digits from which a number counts as long, and once more for each as many: their cost grows with their square."""
MAX_LONG_NUMBERS = 5000
WHITE_SPACE = b" \t\r\n"
ZEROS = bytes.maketrans(b"123456789", b"0" * 9)
PART_BYTES = 1 << 20
"""Of a body are changed at a time, some 2 ms for which the interpreter is held."""
CONTINUATION = "continuation"
"""The field with the token of a stream that goes on."""
MAX_IGNORED = 100
"""Fields of one body that are left out; a client that sends more is not a client of this API."""
MAX_FAULTS = 10 * MAX_IGNORED
"""Of one body that are looked at one by one, for which the interpreter is held."""
Path = tuple[int | str, ...]
Table = Mapping[str, tuple[Callable[[Any], bool], str]]


@dataclass(slots=True)
class ReceivedBody:
    """A body as it came. strict: fields without effect are refused. ignored: those that were left out.

    takes_continuation: what it requests is a stream, which may go on with one of another replica. continuation: the
    token of that one, "" for none.
    """

    raw: bytes
    strict: bool = False
    ignored: list[str] = field(default_factory=list)
    takes_continuation: bool = False
    continuation: str = ""

    def ignore(self, name: str, message: str, code: str) -> None:
        """Note a field that is left out. Raises Refused where there are too many of them, or with strict."""
        if name in self.ignored:  # a body may be validated twice
            return
        if self.strict or len(self.ignored) >= MAX_IGNORED:
            raise refusal(message, name, code)
        self.ignored.append(name)

    def ignore_without_effect(self, name: str) -> None:
        """Note a known field that changes nothing here. Raises Refused as ignore() does."""
        self.ignore(name, f"{quoted(name)} has no effect here.", "unsupported_parameter")


Raw = bytes | ReceivedBody | dict[str, Any]
"""A body as it came, or a document that was made of one."""


class StrictModel(BaseModel):
    """JSON types are taken literally: "5" is no number and true is none either."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def decoded(raw: bytes) -> dict[str, Any]:
    """The body as a JSON object. Raises Refused."""
    _check_work(raw)
    try:
        document = from_json(raw, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise Refused(openai_errors.invalid(f"The body is not valid JSON: {error}", code="invalid_json")) from error
    if not isinstance(document, dict):
        raise Refused(openai_errors.invalid("The body must be a JSON object.", code="invalid_json"))
    return document


def _check_work(raw: bytes) -> None:
    """Raises Refused for a body whose decoding would hold the interpreter for more than some 50 ms.

    Texts are read at gigabytes per second, single values a hundred times slower.
    """
    commas = raw.count(b",")
    if commas > MAX_COMMAS or raw.count(b"{") + raw.count(b"[") > MAX_BRACKETS:
        raise _too_many(f"{MAX_COMMAS} commas or {MAX_BRACKETS} brackets; send fewer values at a time")
    if commas > MAX_COMMAS // 4 and commas + _counted(raw, WIDE_NUMBER, ZEROS) > MAX_COMMAS:
        raise _too_many(f"{MAX_COMMAS} values, numbers counted once more for each {len(WIDE_NUMBER)} digits")
    if raw.count(b":") > MAX_NAMES and _counted(raw, b'":', None, WHITE_SPACE) > MAX_NAMES:
        raise _too_many(f"{MAX_NAMES} names of fields; send fewer at a time")
    if len(raw) > MAX_LONG_NUMBERS * len(LONG_NUMBER) and _counted(raw, LONG_NUMBER, ZEROS) > MAX_LONG_NUMBERS:
        raise _too_many(f"{MAX_LONG_NUMBERS} times {len(LONG_NUMBER)} digits in long numbers")


def _counted(raw: bytes, wanted: bytes, table: bytes | None, left_out: bytes = b"") -> int:
    """How often it is in a body translated by the table without some bytes, but for those across its parts' borders."""
    parts = (raw[start : start + PART_BYTES] for start in range(0, len(raw), PART_BYTES))
    return sum(part.translate(table, left_out).count(wanted) for part in parts)


def _too_many(what: str) -> Refused:
    return Refused(openai_errors.invalid(f"The body has more than {what}.", code="too_many_values"))


def validated(raw: Raw, model: type[_Model], table: Table, labels: Collection[str] = ignored_fields.LABELS) -> _Model:
    """The body as a model. table: fields without effect, their harmless values; labels: any value. Raises Refused."""
    if isinstance(raw, dict):
        body, document = ReceivedBody(b"", strict=True), raw
    else:
        body = raw if isinstance(raw, ReceivedBody) else ReceivedBody(raw)
        document = decoded(body.raw)
    fields = {}
    for name, value in document.items():
        if value is None or name in labels:
            continue
        if name == CONTINUATION and body.takes_continuation:
            if not isinstance(value, str):
                raise refusal(f"Invalid '{name}': Input should be a valid string.", name)
            body.continuation = value
            continue
        if name in table:
            harmless, names = table[name]
            if not harmless(value) and not names:
                body.ignore_without_effect(name)
            elif not harmless(value):
                message = f"{quoted(name)} is not supported here; only {names} is accepted."
                raise Refused(openai_errors.invalid(message, param=name, code="unsupported_parameter"))
            continue
        fields[name] = value
    while True:  # leaving fields out may show others
        try:
            return model.model_validate(fields, context=body)
        except ValidationError as error:
            unknown = leave_out_unknown(error, fields)
            if not unknown:
                raise translated(error) from error
        for path in unknown:
            body.ignore(path, f"Unrecognized request argument: {quoted(path)}.", "unknown_parameter")


def ignore(info: ValidationInfo, name: str) -> None:
    """Note a part of a body that a validator of its model leaves out. Raises Refused where such parts are refused."""
    if isinstance(info.context, ReceivedBody):
        info.context.ignore_without_effect(name)


def leave_out_unknown(error: ValidationError, fields: dict[str, Any]) -> list[str]:
    """Remove the unknown fields that an error is about from a document, at any depth. Their paths.

    Empty where something else is wrong too, so that nothing was removed. Raises Refused where the faults are too many
    to be listed.
    """
    if error.error_count() > MAX_FAULTS:
        message = f"The body has {error.error_count()} faults, such as unknown fields."
        raise Refused(openai_errors.invalid(message, code="invalid_value")) from error
    details = error.errors(include_url=False, include_context=False, include_input=False)
    if any(detail["type"] != "extra_forbidden" for detail in details):
        return []
    removed = []
    for detail in details:
        *parents, name = detail["loc"]
        parent = _found(fields, parents, name)
        if parent is None:
            return []
        del parent[name]
        removed.append(_path(detail["loc"]))
    return removed


def _found(document: Any, path: Sequence[int | str], name: int | str) -> dict[Any, Any] | None:
    """The object with this name at a path, in which names of the kinds of a union may stand between those of fields."""
    if not path:
        return document if isinstance(document, dict) and name in document else None
    part, *rest = path
    in_list = isinstance(document, list) and isinstance(part, int) and part < len(document)
    if in_list or (isinstance(document, dict) and part in document):
        found = _found(document[part], rest, name)
        if found is not None:
            return found
    return _found(document, rest, name)


def translated(error: ValidationError) -> Refused:
    """The first fault of a body, as the client's error; one that is not only a field too many comes first."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    return _translated(next((one for one in details if one["type"] != "extra_forbidden"), details[0]))


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


def _path(location: Path) -> str:
    """messages[0].content, as OpenAI writes it; a client's names in it are bounded."""
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path[:200]


def refusal(message: str, param: str, code: str = "invalid_value") -> Refused:
    """The error of a field that is wrong."""
    return Refused(openai_errors.invalid(message, param=param, code=code))
