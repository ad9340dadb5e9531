"""The grammar that the fields of a request ask for. Called by output_format.py.

It only reads fields: grammar_validator.py finds out whether a grammar compiles, and the engine applies it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from kvasir_api import openai_errors
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.protocol.sampling_fields import SamplingFields
from kvasir_runtime.guide.structural_tag import ANY_OBJECT
from kvasir_runtime.wire import Grammar, GrammarKind

MAX_BYTES: Final = 512 * 1024
MAX_TOTAL_BYTES: Final = 16 << 20
"""Of the grammars of all answers of one request: each is sent to the engine with its own."""


class RequestedGrammar(NamedTuple):
    """A grammar, and the field that requests it."""

    grammar: Grammar
    field: str


class _Json(NamedTuple):
    """How JSON is written and checked. whitespace: a pattern, "" for none, None for the usual."""

    whitespace: str | None
    closed: bool

    def grammar(self, schema: Any) -> Grammar:
        """The grammar of a schema; without one, of any object."""
        if schema is None and self.whitespace is None:
            return Grammar(kind="json_object")
        schema = ANY_OBJECT if schema is None else {} if schema is True else schema
        if self.closed:
            schema = _closed(schema)
        if self.whitespace is not None and isinstance(schema, dict):
            own = schema.get("x-guidance")
            form = {"whitespace_pattern": self.whitespace} if self.whitespace else {"whitespace_flexible": False}
            schema = {**schema, "x-guidance": {**(own if isinstance(own, dict) else {}), **form}}
        return Grammar(kind="json_schema", text=_text(schema))


def requested_grammar(body: SamplingFields) -> RequestedGrammar | None:
    """What response_format, guided_* or structured_outputs ask for, None where nothing does.

    Raises Refused where two of them ask.
    """
    structured: Mapping[str, Any] = body.structured_outputs
    json_form = _Json(_whitespace(body, structured), _closes(body, structured))
    found = [*_of_guided(body, json_form), *_of_structured(structured, json_form)]
    response_format = getattr(body, "response_format", None)
    if response_format:
        found.append(RequestedGrammar(_of_format(response_format, json_form), "response_format"))
    if len(found) > 1:
        raise _refused(f"{found[0].field} and {found[1].field} exclude each other", found[1].field)
    pattern = "guided_whitespace_pattern"
    if body.guided_whitespace_pattern is not None and not (found and found[0].grammar.kind.startswith("json")):
        raise _refused(f"{pattern} needs a field that requests JSON", pattern)
    if not found:
        return None
    if len(found[0].grammar.text.encode()) > MAX_BYTES:
        raise _refused(f"{found[0].field} is larger than {MAX_BYTES} bytes", found[0].field)
    return found[0]


def check_total(grammar: Grammar, num_answers: int) -> None:
    """Whether so many answers may have this grammar. Raises Refused."""
    if len(grammar.text.encode()) * num_answers > MAX_TOTAL_BYTES:
        limit = f"{MAX_TOTAL_BYTES >> 20} MiB of grammars"
        raise _refused(f"{num_answers} answers would need more than {limit}; ask for fewer", "n")


def _of_guided(body: SamplingFields, json_form: _Json) -> list[RequestedGrammar]:
    found = []
    if body.guided_json is not None:
        found.append(RequestedGrammar(json_form.grammar(body.guided_json), "guided_json"))
    if body.guided_regex is not None:
        found.append(RequestedGrammar(Grammar(kind="regex", text=body.guided_regex), "guided_regex"))
    if body.guided_choice:
        found.append(RequestedGrammar(Grammar(kind="choice", text=_text(body.guided_choice)), "guided_choice"))
    if body.guided_grammar is not None:
        found.append(RequestedGrammar(Grammar(kind="lark", text=body.guided_grammar), "guided_grammar"))
    return found


def _of_structured(given: Mapping[str, Any], json_form: _Json) -> list[RequestedGrammar]:
    """structured_outputs has been checked to ask for one form at most."""
    kinds: dict[str, GrammarKind] = {"regex": "regex", "grammar": "lark"}
    grammar = None
    if "json" in given:
        grammar = json_form.grammar(given["json"])
    elif given.get("json_object"):
        grammar = json_form.grammar(None)
    elif "choice" in given:
        grammar = Grammar(kind="choice", text=_text(given["choice"]))
    elif "structural_tag" in given:
        grammar = Grammar(kind="structural_tag", text=_text(given["structural_tag"]))
    for name, kind in kinds.items():
        if name in given:
            grammar = Grammar(kind=kind, text=given[name])
    return [] if grammar is None else [RequestedGrammar(grammar, "structured_outputs")]


def _of_format(given: Mapping[str, Any], json_form: _Json) -> Grammar:
    match given["type"]:
        case "json_schema":
            return json_form.grammar(given["json_schema"].get("schema"))
        case "structural_tag":
            return Grammar(kind="structural_tag", text=_text({k: v for k, v in given.items() if k != "type"}))
        case _:
            return json_form.grammar(None)


def _whitespace(body: SamplingFields, structured: Mapping[str, Any]) -> str | None:
    own = body.guided_whitespace_pattern
    pattern = structured.get("whitespace_pattern") if own is None else own
    compact = structured.get("disable_any_whitespace") or _option(body, "disable-any-whitespace")
    return "" if pattern is None and compact else pattern


def _closes(body: SamplingFields, structured: Mapping[str, Any]) -> bool:
    return bool(structured.get("disable_additional_properties")) or _option(body, "no-additional-properties")


def _option(body: SamplingFields, name: str) -> bool:
    return name in (body.guided_decoding_backend or "").partition(":")[2].split(",")


def _closed(schema: Any) -> Any:
    """The schema with no properties but those that its objects name, where they do not say so themselves."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(item) for name, item in schema.items()}
    if {"properties", "patternProperties"} & closed.keys() and isinstance(closed.get("properties", {}), dict):
        closed.setdefault("additionalProperties", False)
    return closed


def _text(document: Any) -> str:
    return json.dumps(document, ensure_ascii=False)


def _refused(message: str, param: str) -> Refused:
    return Refused(openai_errors.invalid(message, param=param, code="invalid_value"))
