"""What stands in a call beside fixed texts: a name, JSON, XML parameters, Python keywords; each with its machine.

The table of formats is made of these; readers run the machines, grammars are derived from the same declarations. Pure.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvasir_runtime.frontend.parsing import char_machines, literals
from kvasir_runtime.frontend.parsing.char_machines import (
    NoCall,
    Steps,
    json_string,
    json_value,
    literal,
    one_of,
    skipped,
)
from kvasir_runtime.frontend.parsing.tool_call_builder import ToolCallBuilder

MAX_VALUE: Final = 1 << 20
MAX_RETRIES: Final = 64
"""Ends of a value that may stand in a string of it."""


@dataclass(frozen=True, slots=True)
class NameField:
    """The function's name."""

    def read(self, c: str, taking: ToolCallBuilder) -> Steps:
        """Raises NoCall where it was not offered."""
        return char_machines.name(c, taking.named)


@dataclass(frozen=True, slots=True)
class CallIdField:
    """An identifier that the model makes up; ours are better, so it is read and dropped."""

    def read(self, c: str, _: ToolCallBuilder) -> Steps:
        """Past it."""
        return char_machines.name(c, _dropped)


@dataclass(frozen=True, slots=True)
class NumberedNameField:
    """functions.NAME:NUMBER, which names the function and is the call's identifier: the template shows it again."""

    def read(self, c: str, taking: ToolCallBuilder) -> Steps:
        """The first word is left out by some, the name too where there is only one function. Raises NoCall."""
        c = yield from skipped(c)
        found = ""
        while (c in char_machines.NAME or c == ":") and len(found) <= char_machines.MAX_NAME:
            found += c
            c = yield
        name, _, number = found.rpartition(":")
        if not number.isdigit():
            raise NoCall
        if not name and len(taking.offered) == 1:
            name = next(iter(taking.offered))
        taking.named(name.removeprefix("functions."), call_id=found)
        return c


@dataclass(frozen=True, slots=True)
class ArgumentsField:
    """A JSON object."""

    def read(self, c: str, taking: ToolCallBuilder) -> Steps:
        """The last slot of its call."""
        c = yield from _arguments(c, taking)
        taking.done()
        return c


@dataclass(frozen=True, slots=True)
class JsonCallField:
    """A JSON object with the name and, by this key, the arguments; in any order. Other members are read and dropped."""

    key: str = "arguments"

    def read(self, c: str, taking: ToolCallBuilder) -> Steps:
        """A call with both keys is understood, since models mix them up."""
        c = yield from skipped(c)
        if c != "{":
            raise NoCall
        seen = set()
        while c != "}":
            key = yield from _key()
            kind = "arguments" if key in {"arguments", "parameters"} else key
            if kind in seen:
                raise NoCall
            seen.add(kind)
            if kind == "arguments":
                c = yield from _arguments("", taking)
            elif kind == "name":
                taking.named((yield from _text()))
                c = ""
            else:
                c = yield from json_value("", _dropped, 1)
            c = yield from skipped(c)
            if c not in {",", "}"}:
                raise NoCall
        taking.done()
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParametersField:
    """Arguments one by one as XML-like elements; their types are those of the function's schema.

    Where named ends with a line break, those at both ends of a value belong to the format.
    """

    begin: str
    named: str
    close: str
    end: str

    def read(self, c: str, taking: ToolCallBuilder) -> Steps:
        """Until the end of the function, with which the call is complete."""
        count = 0
        seen: set[str] = set()
        while True:
            which: list[int] = []
            c = yield from one_of((self.begin, self.end), c, which)
            if which == [1]:
                taking.put("}" if count else "{}")
                taking.done()
                return c
            key = yield from self._key()
            if key in seen:
                raise NoCall
            seen.add(key)
            taking.put(("{" if not count else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            yield from self._value(taking, taking.types(key))
            count += 1
            c = ""

    def _key(self) -> Steps:
        found = ""
        c = yield
        while not self.named.startswith(c):
            found += c
            if len(found) > char_machines.MAX_NAME:
                raise NoCall
            c = yield
        yield from literal(c, self.named)
        if not found.strip():
            raise NoCall
        return found.strip()

    def _value(self, taking: ToolCallBuilder, types: set[str]) -> Steps:
        """Strings are returned as they come, other values when they are complete: an end within JSON is part of it."""
        whole: list[str] = []
        put = whole.append
        if types == {"string"}:
            taking.put('"')
            put = lambda text: taking.put(literals.escaped(text))  # noqa: E731
        framed = self.named.endswith("\n")
        ends = ("\n" + self.close.strip(), self.close.strip()) if framed else (self.close.strip(),)
        held, size, first = "", 0, framed
        retries = MAX_RETRIES if "string" not in types else 0
        while held not in ends or (retries and literals.is_begun_json("".join(whole))):
            if held in ends:
                retries -= 1
            c = yield
            if first and c == "\n":
                first = False
                continue
            first = False
            held += c
            while held and not any(end.startswith(held) for end in ends):
                put(held[0])
                held = held[1:]
                size += 1
                if size > MAX_VALUE:
                    raise NoCall
        taking.put('"' if types == {"string"} else literals.typed("".join(whole), types))
        return ""


@dataclass(frozen=True, slots=True)
class KeywordsField:
    """A call as Python writes it: name(key=value, ...), with literals as values, each returned when it is complete."""

    def read(self, c: str, taking: ToolCallBuilder) -> Steps:
        """Until its closing parenthesis."""
        c = yield from char_machines.name(c, taking.named)
        c = yield from literal(c, "(")
        c = yield from skipped("")
        seen: set[str] = set()
        while c != ")":
            key: list[str] = []
            c = yield from char_machines.name(c, key.append)
            yield from literal(c, "=")
            value: list[str] = []
            c = yield from literals.python(value.append)
            if key[0] in seen:
                raise NoCall
            taking.put(("{" if not seen else ", ") + json.dumps(key[0]) + ": " + literals.from_python(value[0]))
            seen.add(key[0])
            if c == ",":
                c = yield from skipped("")
        taking.put("}" if seen else "{}")
        taking.done()
        return ""


Slot = NameField | NumberedNameField | CallIdField | ArgumentsField | JsonCallField | ParametersField | KeywordsField


def _dropped(_: str) -> None:
    """Receives characters that are dropped."""


def _key() -> Steps:
    """A member's name, past its colon."""
    c = yield from skipped("")
    if c != '"':
        raise NoCall
    found: list[str] = []
    yield from json_string(found.append)
    yield from literal("", ":")
    return str(json.loads("".join(found)))


def _text() -> Steps:
    """A JSON string's text."""
    c = yield from skipped("")
    if c != '"':
        raise NoCall
    found: list[str] = []
    yield from json_string(found.append)
    return str(json.loads("".join(found)))


def _arguments(c: str, taking: ToolCallBuilder) -> Steps:
    """An object; also one that was written into a string, as some models do; null is the empty one."""
    c = yield from skipped(c)
    if c == "{":
        return (yield from json_value(c, taking.put, 1))
    found: list[str] = []
    if c == '"':
        yield from json_string(found.append)
        try:
            inner = json.loads(json.loads("".join(found)))
        except (ValueError, RecursionError) as error:
            raise NoCall from error
        if not isinstance(inner, Mapping):
            raise NoCall
        taking.put(json.dumps(inner, ensure_ascii=False))
        return ""
    if c == "n":
        yield from literal(c, "null")
        taking.put("{}")
        return ""
    raise NoCall
