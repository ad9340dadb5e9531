"""Lark grammars from structural tags: free text in which certain beginnings force a form until an end, as calls do.

Takes the older shape (structures and triggers) and the newer one (a format made of tags, sequences, choices, schemas).
Used by grammars.py. The format follows XGrammar's documentation of structural tags; Lark as llguidance reads it.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from llguidance import regex_to_lark
from llguidance.gbnf_to_lark import any_to_lark

from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.guide.schemas import json_grammar, translate

ANY: Final = "/(?s:.*)/"
MAX_TAGS: Final = 1024
MAX_DEPTH: Final = 32


class TagGrammar(NamedTuple):
    """text: of the grammar. checks: by the name of a capture, the schema that its text is checked against."""

    text: str
    checks: dict[str, Any]


def from_structural_tag(document: Any, specials: Mapping[str, int]) -> TagGrammar:
    """The grammar of a structural tag. specials: ids of special tokens, which are never spelled with letters.

    Raises GrammarError that names what is missing or unknown.
    """
    writer = _Writer(specials)
    start = writer.rule(form_of(document), "format", 0)
    text = "\n".join(["%llguidance {}", f"start: {start}", f"TEXT: {ANY}", *writer.rules])
    if writer.others:
        text = json.dumps({"grammars": [{"lark_grammar": text}, *writer.others]}, ensure_ascii=False)
    return TagGrammar(text, writer.checks)


def from_gbnf(text: str) -> str:
    """Lark as it is, GBNF translated. Raises GrammarError. It may take long for hostile texts."""
    try:
        return str(any_to_lark(text))
    except Exception as error:  # the converter raises whatever it stumbles over
        raise GrammarError(f"it is neither Lark nor GBNF: {error}") from error


def form_of(document: Any) -> Any:
    """The format of a structural tag in either shape. Raises GrammarError."""
    if not isinstance(document, dict):
        raise GrammarError("a structural tag must be an object")
    return document["format"] if "format" in document else _of_structures(document)


def _of_structures(document: Mapping[str, Any]) -> dict[str, Any]:
    """The older shape in terms of the newer."""
    structures, triggers = document.get("structures"), document.get("triggers")
    if not isinstance(structures, list) or not structures:
        raise GrammarError("a structural tag needs a format, or structures and triggers")
    tags = []
    for number, one in enumerate(structures):
        if not isinstance(one, dict):
            raise GrammarError(f"structures[{number}] must be an object")
        schema = one.get("schema", {"type": "object"})
        content = {"type": "json_schema", "json_schema": schema}
        tags.append({"type": "tag", "begin": one.get("begin"), "content": content, "end": one.get("end", "")})
    return {"type": "triggered_tags", "triggers": triggers, "tags": tags}


class _Writer:
    """Rules of one grammar as they are found. others: grammars of their own that it refers to. checks: by capture."""

    def __init__(self, specials: Mapping[str, int]) -> None:
        self.rules: list[str] = []
        self.others: list[dict[str, Any]] = []
        self.checks: dict[str, Any] = {}
        self._specials = sorted(specials.items(), key=lambda item: -len(item[0]))

    def rule(self, form: Any, where: str, depth: int) -> str:
        """The expression of a format. where: its place, for messages."""
        if not isinstance(form, dict) or depth > MAX_DEPTH:
            raise GrammarError(f"{where} must be an object with a type, at most {MAX_DEPTH} deep")
        match form.get("type"):
            case "const_string":
                return self._literal(_text(form, "value", where)) or '""'
            case "json_schema":
                return self._json(form.get("json_schema"))
            case "regex":
                pattern = regex_to_lark(_text(form, "pattern", where, empty=True), "d")
                return self._named(f"/{pattern}/" if pattern else '""')
            case "grammar":
                name = f"other_{len(self.others)}"
                self.others.append({"name": name, "lark_grammar": from_gbnf(_text(form, "grammar", where))})
                return self._named(f"@{name}")
            case "any_text":
                return "TEXT"
            case "sequence":
                return self._sequence(_list(form, "elements", where), f"{where}.elements", depth)
            case "or":
                elements = _list(form, "elements", where)
                parts = [self.rule(one, f"{where}.elements[{i}]", depth + 1) for i, one in enumerate(elements)]
                return self._named(" | ".join(parts))
            case "structural_tag":
                return self.rule(form_of(form), where, depth + 1)
            case "tag":
                return self._tag(form, "", where, depth)
            case "triggered_tags":
                return self._triggered(form, where, depth)
            case "tags_with_separator":
                return self._separated(form, where, depth)
            case other:
                raise GrammarError(f"{where} has the type {json.dumps(other)[:60]}, which is not supported")

    def _json(self, schema: Any) -> str:
        """A schema; captured where its grammar allows more, so that it can be checked."""
        made = translate.translated(schema, counts_names=False)
        expression = f"%json {json.dumps(json_grammar.with_whitespace(made.schema), ensure_ascii=False)}"
        if not made.loose:
            return self._named(expression)
        name = f"check_{len(self.checks)}"
        self.checks[name] = schema
        self.rules.append(f'{name}[capture="{name}"]: {expression}')
        return name

    def _sequence(self, elements: Sequence[Any], where: str, depth: int) -> str:
        parts = []
        for number, one in enumerate(elements):
            last = number == len(elements) - 1
            if not last and isinstance(one, dict) and one.get("type") == "any_text":
                raise GrammarError(f"{where}[{number}] is any_text before other elements; give it an end in a tag")
            parts.append(self.rule(one, f"{where}[{number}]", depth + 1))
        return self._named(" ".join(parts))

    def _tag(self, form: Mapping[str, Any], begun: str, where: str, depth: int) -> str:
        """A tag whose beginning has already been written as far as begun."""
        begin, end = _text(form, "begin", where), _text(form, "end", where, empty=True)
        content = form.get("content")
        head = self._literal(begin.removeprefix(begun))
        if isinstance(content, dict) and content.get("type") == "any_text" and end:
            return self._named(f"{head} {self._until(end)}")
        body = self.rule(content, f"{where}.content", depth + 1)
        return self._named(f"{head} {body} {self._literal(end)}")

    def _until(self, end: str) -> str:
        """Any text, and the end that it runs to."""
        first = self._pieces(end)[0]
        if isinstance(first, int):
            return f"TEXT {self._literal(end)}"
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}[suffix={json.dumps(first, ensure_ascii=False)}]: {ANY}")
        return f"{name} {self._literal(end.removeprefix(first))}"

    def _triggered(self, form: Mapping[str, Any], where: str, depth: int) -> str:
        triggers, tags = _list(form, "triggers", where), _list(form, "tags", where)
        if not all(isinstance(trigger, str) and trigger for trigger in triggers):
            raise GrammarError(f"{where}.triggers must be non-empty strings")
        heads: dict[str, list[str]] = {}
        whole = []
        for number, tag in enumerate(tags):
            place = f"{where}.tags[{number}]"
            begin = _text(tag, "begin", place) if isinstance(tag, dict) else ""
            trigger = max((one for one in triggers if begin.startswith(one)), key=len, default="")
            if not trigger:
                raise GrammarError(f"{place}.begin starts with none of the triggers")
            heads.setdefault(trigger, []).append(self._tag(tag, trigger, place, depth))
            if form.get("at_least_one"):
                whole.append(self._tag(tag, "", place, depth))
        calls = self._named(" | ".join(f"{self._trigger(one)} ({' | '.join(rest)})" for one, rest in heads.items()))
        if form.get("stop_after_first"):
            return self._named(" | ".join(whole)) if whole else self._named(f"{calls} | TEXT")
        after = self._named(f"{calls}* TEXT")
        return self._named(f"({' | '.join(whole)}) {after}") if whole else after

    def _trigger(self, trigger: str) -> str:
        """Text up to and with a trigger."""
        first, *rest = self._pieces(trigger)
        if isinstance(first, int):
            return f"TEXT {self._literal(trigger)}"
        if rest:
            raise GrammarError(f"the trigger {json.dumps(trigger)[:60]} has a special token behind text")
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}[lazy]: TEXT {json.dumps(trigger, ensure_ascii=False)}")
        return name

    def _separated(self, form: Mapping[str, Any], where: str, depth: int) -> str:
        tags = _list(form, "tags", where)
        one = self._named(" | ".join(self._tag(tag, "", f"{where}.tags[{i}]", depth) for i, tag in enumerate(tags)))
        separator = self._literal(_text(form, "separator", where, empty=True))
        many = one if form.get("stop_after_first") else self._named(f"{one} ({separator} {one})*")
        return many if form.get("at_least_one") else self._named(f"{many} | ")

    def _named(self, expression: str) -> str:
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}: {expression}")
        return name

    def _literal(self, text: str) -> str:
        """A text, with special tokens in it by their ids; empty for no text."""
        parts = (
            f"<[{piece}]>" if isinstance(piece, int) else json.dumps(piece, ensure_ascii=False)
            for piece in self._pieces(text)
        )
        return " ".join(parts)

    def _pieces(self, text: str) -> list[str | int]:
        pieces: list[str | int] = [text] if text else []
        for name, token_id in self._specials:
            for index in range(len(pieces) - 1, -1, -1):
                piece = pieces[index]
                if isinstance(piece, str) and name in piece:
                    cut: list[str | int] = []
                    for part in piece.split(name):
                        cut += [*([part] if part else []), token_id]
                    pieces[index : index + 1] = cut[:-1]
        return pieces


def _text(form: Any, name: str, where: str, *, empty: bool = False) -> str:
    value = form.get(name) if isinstance(form, dict) else None
    if not isinstance(value, str) or not (value or empty):
        raise GrammarError(f"{where}.{name} must be a {'' if empty else 'non-empty '}string")
    return value


def _list(form: Mapping[str, Any], name: str, where: str) -> list[Any]:
    value = form.get(name)
    if not isinstance(value, list) or not 1 <= len(value) <= MAX_TAGS:
        raise GrammarError(f"{where}.{name} must be a list of 1 to {MAX_TAGS}")
    return value
