"""Small machines that read text one character at a time, so that it does not matter how the text was cut.

Each is a generator: it is sent the next character and ends when its pattern is complete. It is given the first
character, or "" when that is still to come, and returns the first one that it did not use, or "" when it used all. What
cannot become what is wanted raises NoCall. Used by the formats of calls. Pure."""

from collections.abc import Callable, Generator, Sequence
from typing import Final

Steps = Generator[None, str, str]
Put = Callable[[str], None]

SPACE: Final = frozenset(" \t\r\n")
NAME: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.")
NUMBER: Final = frozenset("0123456789+-.eE")
HEX: Final = frozenset("0123456789abcdefABCDEF")
CONTROL: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\b": "\\b", "\f": "\\f"}
MAX_NAME: Final = 128
MAX_DEPTH: Final = 64


class NoCall(Exception):
    """The text is no call, or no longer one."""


def skipped(c: str) -> Steps:
    """Past white space; the first character that is none."""
    while not c or c in SPACE:
        c = yield
    return c


def literal(c: str, text: str) -> Steps:
    """Past a text that has to come, however its white space is."""
    for word in text.split():
        c = yield from skipped(c)
        for position, wanted in enumerate(word):
            if position:
                c = yield
            if c != wanted:
                raise NoCall
        c = ""
    return c


def one_of(texts: Sequence[str], c: str, which: list[int]) -> Steps:
    """Past one of several texts, none a beginning of another; its index is put into which."""
    words = ["".join(text.split()) for text in texts]
    c = yield from skipped(c)
    alive = list(range(len(words)))
    position = 0
    while True:
        alive = [index for index in alive if words[index][position] == c]
        if not alive:
            raise NoCall
        position += 1
        if len(words[alive[0]]) == position:
            which.append(alive[0])
            return ""
        c = yield
        while c in SPACE:
            c = yield


def name(c: str, put: Put) -> Steps:
    """A function's name, after white space; put gets it whole."""
    c = yield from skipped(c)
    found = ""
    while c in NAME and len(found) < MAX_NAME:
        found += c
        c = yield
    if not found:
        raise NoCall
    put(found)
    return c


def json_value(c: str, put: Put, depth: int = 0) -> Steps:
    """A JSON value, after white space; put gets its characters, and escapes for line breaks inside of strings.

    What put has got is at every moment the beginning of valid JSON.
    """
    c = yield from skipped(c)
    if depth > MAX_DEPTH:
        raise NoCall
    if c == "{":
        return (yield from _members(put, depth))
    if c == "[":
        return (yield from _items(put, depth))
    if c == '"':
        return (yield from json_string(put))
    if c in "-0123456789":
        return (yield from _number(c, put))
    for word in ("true", "false", "null"):
        if c == word[0]:
            c = yield from literal(c, word)
            put(word)
            return c
    raise NoCall


def json_string(put: Put) -> Steps:
    """A JSON string whose opening quote was read."""
    put('"')
    while True:
        c = yield
        if c == '"':
            put(c)
            return ""
        if c != "\\":
            put(c if c >= " " else CONTROL.get(c) or f"\\u{ord(c):04x}")
            continue
        c = yield
        if c == "u":
            code = ""
            while len(code) < 4:
                c = yield
                if c not in HEX:
                    raise NoCall
                code += c
            put("\\u" + code)
        elif c in '"\\/bfnrt':
            put("\\" + c)
        else:
            raise NoCall


def _members(put: Put, depth: int) -> Steps:
    put("{")
    c = yield from skipped("")
    while c != "}":
        if c != '"':
            raise NoCall
        yield from json_string(put)
        yield from literal("", ":")
        put(": ")
        c = yield from json_value("", put, depth + 1)
        c = yield from _after(c, "}")
        if c == ",":
            c = yield from skipped("")
            if c == "}":
                raise NoCall
            put(", ")
    put("}")
    return ""


def _items(put: Put, depth: int) -> Steps:
    put("[")
    c = yield from skipped("")
    while c != "]":
        c = yield from json_value(c, put, depth + 1)
        c = yield from _after(c, "]")
        if c == ",":
            c = yield from skipped("")
            if c == "]":
                raise NoCall
            put(", ")
    put("]")
    return ""


def _after(c: str, end: str) -> Steps:
    """The comma or the end after a value."""
    c = yield from skipped(c)
    if c not in {",", end}:
        raise NoCall
    return c


def _number(c: str, put: Put) -> Steps:
    text = ""
    while c in NUMBER:
        text += c
        c = yield
    if not is_number(text):
        raise NoCall
    put(text)
    return c


def is_number(text: str) -> bool:
    """Whether it is a number as JSON writes them, of at most 400 characters."""
    whole, _, exponent = text.lower().partition("e")
    integer, point, fraction = whole.removeprefix("-").partition(".")
    if len(text) > 400 or not integer.isdigit() or (len(integer) > 1 and integer[0] == "0"):
        return False
    if point and not fraction.isdigit():
        return False
    return "e" not in text.lower() or (exponent[1:] if exponent[:1] in {"+", "-"} else exponent).isdigit()
