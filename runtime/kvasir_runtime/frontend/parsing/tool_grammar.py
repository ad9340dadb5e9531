"""Grammars of answers, derived from the table of formats: required calls, strict calls, a form beside calls.

They are structural tags, which the engine compiles. Pure.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from kvasir_runtime.frontend.parsing import formats, harmony, literals
from kvasir_runtime.frontend.parsing.answer_parser import ParserConfig
from kvasir_runtime.frontend.parsing.call_fields import (
    ArgumentsField,
    CallIdField,
    JsonCallField,
    KeywordsField,
    NameField,
    NumberedNameField,
    ParametersField,
)
from kvasir_runtime.frontend.parsing.formats import CallFormat
from kvasir_runtime.frontend.parsing.reasoning_parser import place_of
from kvasir_runtime.frontend.parsing.tool_call_builder import Offered
from kvasir_runtime.guide import structural_tag
from kvasir_runtime.guide.structural_tag import (
    ANY_OBJECT,
    ANY_TEXT,
    Form,
    either,
    json_schema,
    optional,
    separated,
    sequence,
    tag,
    text,
    triggered,
)
from kvasir_runtime.wire import Grammar

Schema = Mapping[str, Any]
BLANKS: Final = structural_tag.regex("[ \\n]{0,4}")
NOTHING: Final = structural_tag.regex("")
NUMBER: Final = structural_tag.regex("[0-9]{1,4}")


def required(config: ParserConfig) -> Grammar:
    """At least one call and nothing else, after reasoning where the model has it."""
    if config.is_harmony:
        return structural_tag.grammar(_channels(config.offered))
    return _after_reasoning(config, _calls(config))


def answer(config: ParserConfig, form: Form) -> Grammar:
    """A form, or calls where functions are offered; after reasoning where the model has it."""
    if config.is_harmony:
        return structural_tag.grammar(_channels(config.offered, final=form))
    return _after_reasoning(config, either([form, _calls(config)] if config.offered else [form]))


def strict(config: ParserConfig, names: Collection[str]) -> Grammar:
    """Any text; where a call begins, its arguments fit the schema of its function if names holds it."""
    offered = {name: schema if name in names else ANY_OBJECT for name, schema in config.offered.items()}
    if config.is_harmony:
        return structural_tag.grammar(_channels(offered, final=ANY_TEXT, commentary=True))
    row = formats.TOOLS[config.tools].rows[0]
    tags = [_section(row, *one) for one in offered.items()]
    heads = {_head(row, *one) for one in offered.items()}
    form = triggered(sorted(heads), tags, single=config.single)
    return _after_reasoning(config, form, later=form)


def _after_reasoning(config: ParserConfig, form: Form, *, later: Form | None = None) -> Grammar:
    """A form at the beginning of an answer and after reasoning. later: as it is there; default blanks and the form."""
    tags = formats.REASONING.get(config.reasoning)
    place = place_of(config.prompt, tags) if tags is not None else "after"
    if tags is None or place == "after":
        return structural_tag.grammar(form)
    later = sequence(BLANKS, form) if later is None else later
    end = tags.end[0]
    if place == "thinking" or tags.implied:
        return structural_tag.grammar(later, after=end)
    reasoning = either([tag(begin, ANY_TEXT, end) for begin in tags.begin])
    return structural_tag.grammar(either([form, sequence(reasoning, later)]))


def _calls(config: ParserConfig) -> Form:
    """One call, or several in the way of the format."""
    row, functions = formats.TOOLS[config.tools].rows[0], config.offered.items()
    if row.between is None:
        return separated([_section(row, *one) for one in functions], row.again, single=config.single)
    calls = separated([_item(row, *one) for one in functions], row.between, single=config.single)
    begin = "".join(row.begin)
    return sequence(*([text(begin)] if begin else []), calls, *([text(row.end)] if row.end else []))


def _section(row: CallFormat, name: str, schema: Schema) -> Form:
    """A section with one call."""
    item = _item(row, name, schema)
    return {**item, "begin": "".join(row.begin) + item["begin"], "end": item["end"] + row.end}


def _head(row: CallFormat, name: str, schema: Schema) -> str:
    """A text that begins sections and nothing else. Formats without a mark have their calls' own beginning."""
    if row.begin[0]:
        return row.begin[0]
    return str(_section(row, name, schema)["begin"])


def _item(row: CallFormat, name: str, schema: Schema) -> Form:
    """One call as a tag: what comes before its arguments, them, what comes after."""
    before, content, after = "", None, ""
    lead: list[Form] = []
    for step in row.item:
        match step:
            case str(fixed) if content is None and not lead:
                before += fixed
            case str(fixed) if content is None:
                lead.append(text(fixed))
            case str(fixed):
                after += fixed
            case NameField():
                before += name
            case NumberedNameField():
                before += f"functions.{name}:"
                lead.append(NUMBER)
            case CallIdField():
                before += "0"
            case ArgumentsField():
                content = json_schema(schema)
            case JsonCallField(key):
                before += f'{{"name": {json.dumps(name)}, "{key}": '
                content = json_schema(schema)
                after = "}"
            case ParametersField():
                content, after = _elements(step, schema), step.end
            case KeywordsField():
                before += name + "("
                content, after = _keywords(schema), ")"
    assert content is not None, "a format has arguments"
    return tag(before, sequence(*lead, content), after)


def _channels(offered: Offered, *, final: Form | None = None, commentary: bool = False) -> Form:
    """A message to one of the functions, or a final one; also after analysis. commentary: also after a comment."""
    ends = [tag(_recipient(name), json_schema(schema), "") for name, schema in offered.items()]
    if final is not None:
        ends.append(sequence(text(f"{harmony.CHANNEL}final{harmony.MESSAGE}"), final))

    def after(channel: str, rest: Form) -> Form:
        message = tag(f"{harmony.CHANNEL}{channel}{harmony.MESSAGE}", ANY_TEXT, harmony.CLOSING[0])
        return sequence(message, text(f"{harmony.START}assistant"), rest)

    message = either(ends)
    spoken = either([message, after("commentary", message)]) if commentary else message
    return either([spoken, after("analysis", spoken)])


def _recipient(name: str) -> str:
    return f"{harmony.CHANNEL}commentary to={harmony.FUNCTIONS}{name} {harmony.CONSTRAIN}json{harmony.MESSAGE}"


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
            return tag(begin, json_schema(one), slot.close)
        values = root.get("enum", [root["const"]] if "const" in root else [])
        if values:
            return tag(begin, either([text(str(value)) for value in values]), slot.close)
        # Up to the very first end, as it is read; a line break before it is the model's to write.
        value, rest = tag(begin, ANY_TEXT, slot.close.strip()), slot.close[len(slot.close.rstrip()) :]
        return sequence(value, text(rest)) if rest else value

    needed, others = _properties(schema)
    elements = [element(*pair) for pair in needed] + [optional(element(*pair)) for pair in others]
    return sequence(*elements) if elements else NOTHING


def _keywords(schema: Mapping[str, Any]) -> Form:
    """Parameters as name=value: those that are required, then any of the others, with commas between them."""
    needed, others = _properties(schema)

    def some(pairs: Sequence[tuple[str, Any]], first: str) -> Form:
        texts = [first, *[", "] * (len(pairs) - 1)]
        return sequence(
            *(tag(f"{lead}{name}=", json_schema(one), "") for lead, (name, one) in zip(texts, pairs, strict=True))
        )

    def rest(pairs: Sequence[tuple[str, Any]]) -> list[Form]:
        return [optional(tag(f", {name}=", json_schema(one), "")) for name, one in pairs]

    if needed:
        return sequence(some(needed, ""), *rest(others))
    starts = [sequence(some([pair], ""), *rest(others[place + 1 :])) for place, pair in enumerate(others)]
    return either([*starts, NOTHING])
