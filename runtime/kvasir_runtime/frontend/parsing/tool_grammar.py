"""Grammars of calls, derived from the table of formats: what a model may write where calls are required or strict.

They are structural tags in XGrammar's newer form, which the engine's guide turns into its own. Pure.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from kvasir_runtime.frontend.parsing import formats, harmony, literals
from kvasir_runtime.frontend.parsing.answer_parser import Parsing
from kvasir_runtime.frontend.parsing.call_fields import (
    ArgumentsField,
    CallIdField,
    JsonCallField,
    KeywordsField,
    NameField,
    ParametersField,
)
from kvasir_runtime.frontend.parsing.formats import HARMONY, CallFormat
from kvasir_runtime.frontend.parsing.reasoning_parser import place_of
from kvasir_runtime.wire import Grammar

Form = dict[str, Any]
OBJECT: Final = {"type": "object"}
BLANKS: Final = {"type": "regex", "pattern": "[ \\n]{0,4}"}
NOTHING: Final = {"type": "regex", "pattern": ""}
ANY: Final = {"type": "any_text"}


class CallableFunction(NamedTuple):
    """One that may be called. parameters: a JSON schema; strict: also where the call itself is the model's choice."""

    name: str
    parameters: Mapping[str, Any]
    strict: bool = False


def required(parsing: Parsing, functions: Sequence[CallableFunction]) -> Grammar:
    """At least one call and nothing else, after thoughts where the model has them."""
    if parsing.tools == HARMONY:
        return _grammar(_channels(functions))
    row = formats.TOOLS[parsing.tools].rows[0]
    calls = _sections(row, functions, single=parsing.single)
    return _after_thoughts(parsing, calls, _sequence(BLANKS, calls))


def strict(parsing: Parsing, functions: Sequence[CallableFunction]) -> Grammar:
    """Any text; where a call begins, its arguments fit the function's schema if it is strict."""
    loose = [one if one.strict else CallableFunction(one.name, OBJECT) for one in functions]
    if parsing.tools == HARMONY:
        return _grammar(_channels(loose, final=True))
    row = formats.TOOLS[parsing.tools].rows[0]
    tags = [_section(row, one) for one in loose]
    heads = {_head(row, one) for one in loose}
    form: Form = {"type": "triggered_tags", "triggers": sorted(heads), "tags": tags}
    if parsing.single:
        form["stop_after_first"] = True
    return _after_thoughts(parsing, form, form)


def _after_thoughts(parsing: Parsing, first: Form, later: Form) -> Grammar:
    """A form at the beginning of an answer, or another after thoughts, where the model has them."""
    tags = formats.REASONING.get(parsing.reasoning)
    place = place_of(parsing.prompt, tags) if tags is not None else "after"
    if tags is None or place == "after":
        return _grammar(first)
    end = tags.end[0]
    if place == "thinking" or tags.implied:
        return _grammar(later, after=end)
    thoughts = [_tag(begin, ANY, end) for begin in tags.begin]
    return _grammar(_or([first, _sequence(_or(thoughts), later)]))


def _grammar(form: Form, *, after: str = "") -> Grammar:
    return Grammar(kind="structural_tag", text=json.dumps({"format": form}, ensure_ascii=False), after=after)


def _sections(row: CallFormat, functions: Sequence[CallableFunction], *, single: bool) -> Form:
    """One call, or several as the row says."""
    if row.between is None:
        return _separated([_section(row, one) for one in functions], row.again, single=single)
    calls = _separated([_item(row, one) for one in functions], row.between, single=single)
    begin = "".join(row.begin)
    return _sequence(*([_text(begin)] if begin else []), calls, *([_text(row.end)] if row.end else []))


def _section(row: CallFormat, function: CallableFunction) -> Form:
    """A section with one call."""
    item = _item(row, function)
    return {**item, "begin": "".join(row.begin) + item["begin"], "end": item["end"] + row.end}


def _head(row: CallFormat, function: CallableFunction) -> str:
    """A text that begins sections and nothing else. Formats without a mark have their calls' own beginning."""
    if row.begin[0]:
        return row.begin[0]
    return str(_section(row, function)["begin"])


def _item(row: CallFormat, function: CallableFunction) -> Form:
    """One call as a tag: what comes before its arguments, them, what comes after."""
    before, content, after = "", None, ""
    for step in row.item:
        match step:
            case str(text) if content is None:
                before += text
            case str(text):
                after += text
            case NameField():
                before += function.name
            case CallIdField():
                before += "0"
            case ArgumentsField():
                content = _json(function.parameters)
            case JsonCallField(key):
                before += f'{{"name": {json.dumps(function.name)}, "{key}": '
                content = _json(function.parameters)
                after = "}"
            case ParametersField():
                content, after = _elements(step, function.parameters), step.end
            case KeywordsField():
                before += function.name + "("
                content, after = _keywords(function.parameters), ")"
    assert content is not None, "a format has arguments"
    return _tag(before, content, after)


def _channels(functions: Sequence[CallableFunction], *, final: bool = False) -> Form:
    """A message to one of the functions, after analysis, after words to the user, or at once. final: or only words."""
    ends: list[Form] = [_tag(*_message(one)) for one in functions]
    if final:
        ends.append(_tag(f"{harmony.CHANNEL}final{harmony.MESSAGE}", ANY, ""))

    def before(channel: str, rest: Form) -> Form:
        message = _tag(f"{harmony.CHANNEL}{channel}{harmony.MESSAGE}", ANY, harmony.CLOSING[0])
        return _sequence(message, _text(f"{harmony.START}assistant"), rest)

    calls = _or(ends)
    spoken = _or([calls, before("commentary", calls)]) if final else calls
    return _or([spoken, before("analysis", spoken)])


def _message(function: CallableFunction) -> tuple[str, Form, str]:
    to = f"{harmony.CHANNEL}commentary to={harmony.FUNCTIONS}{function.name} {harmony.CONSTRAIN}json{harmony.MESSAGE}"
    return to, _json(function.parameters), ""


def _properties(schema: Mapping[str, Any]) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Required and other parameters, each with its schema."""
    properties, wanted = schema.get("properties"), schema.get("required")
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    named = {
        name: {**one, **shared} if isinstance(one, Mapping) else one
        for name, one in (properties.items() if isinstance(properties, Mapping) else ())
    }
    needed = [name for name in wanted if isinstance(name, str)] if isinstance(wanted, list) else []
    return [(name, named.get(name, {})) for name in needed], [pair for pair in named.items() if pair[0] not in needed]


def _elements(slot: ParametersField, schema: Mapping[str, Any]) -> Form:
    """Parameters as elements: those that are required, then any of the others, in the order of the schema."""

    def element(name: str, one: Any) -> Form:
        begin, root = f"{slot.begin}{name}{slot.named}", one if isinstance(one, Mapping) else {}
        if literals.types(one, root) != {"string"}:
            return _tag(begin, _json(one), slot.close)
        values = root.get("enum", [root["const"]] if "const" in root else [])
        if values:
            return _tag(begin, _or([_text(str(value)) for value in values]), slot.close)
        # Up to the very first end, as it is read; the line break before it is the model's to write.
        return _sequence(_tag(begin, ANY, slot.close.strip()), _text("\n"))

    needed, others = _properties(schema)
    elements = [element(*pair) for pair in needed] + [_optional(element(*pair)) for pair in others]
    return _sequence(*elements) if elements else NOTHING


def _keywords(schema: Mapping[str, Any]) -> Form:
    """Parameters as name=value: those that are required, then any of the others, with commas between them."""
    needed, others = _properties(schema)

    def some(pairs: Sequence[tuple[str, Any]], first: str) -> Form:
        texts = [first, *[", "] * (len(pairs) - 1)]
        return _sequence(
            *(_tag(f"{lead}{name}=", _json(one), "") for lead, (name, one) in zip(texts, pairs, strict=True))
        )

    def rest(pairs: Sequence[tuple[str, Any]]) -> list[Form]:
        return [_optional(_tag(f", {name}=", _json(one), "")) for name, one in pairs]

    if needed:
        return _sequence(some(needed, ""), *rest(others))
    starts = [_sequence(some([pair], ""), *rest(others[place + 1 :])) for place, pair in enumerate(others)]
    return _or([*starts, NOTHING])


def _json(schema: Any) -> Form:
    return {"type": "json_schema", "json_schema": schema}


def _text(text: str) -> Form:
    return {"type": "const_string", "value": text}


def _tag(begin: str, content: Form, end: str) -> Form:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _sequence(*elements: Form) -> Form:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": list(elements)}


def _or(elements: Sequence[Form]) -> Form:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def _separated(tags: Sequence[Form], separator: str, *, single: bool) -> Form:
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": single,
    }


def _optional(tag: Form) -> Form:
    return {"type": "tags_with_separator", "tags": [tag], "separator": "", "stop_after_first": True}
