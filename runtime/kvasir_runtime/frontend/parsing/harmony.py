"""Reads the channels of gpt-oss: analysis is reasoning, a recipient makes a call, all else is content.

A message is a header, <|message|>, its text, and a mark of its end. Calls are sent to functions.NAME in any channel.
A message to anybody else, or to a function that was not offered, is content as it was written. One reader per choice;
how the text was cut changes nothing. Pure.
"""

import re
from collections.abc import Callable
from typing import Final, Literal

from kvasir_runtime.frontend.parsing.call_fields import ArgumentsField
from kvasir_runtime.frontend.parsing.char_machines import SPACE, NoCall, Steps
from kvasir_runtime.frontend.parsing.parts import CallBroken, Content, Part, Reasoning
from kvasir_runtime.frontend.parsing.tool_call_builder import Offered, ToolCallBuilder
from kvasir_runtime.frontend.parsing.tool_parser import begun

START: Final = "<|start|>"
CHANNEL: Final = "<|channel|>"
MESSAGE: Final = "<|message|>"
CONSTRAIN: Final = "<|constrain|>"
CALL: Final = "<|call|>"
CLOSING: Final = ("<|end|>", CALL, "<|return|>")
ENDS: Final = (*CLOSING, START)
MARKS: Final = (*ENDS, CHANNEL, MESSAGE, CONSTRAIN)
HEADS: Final = (CHANNEL, START, "to=", "assistant")
RECIPIENT: Final = re.compile(r"\bto=([^\s<]+)")
FUNCTIONS: Final = "functions."
MAX_HEADER: Final = 512


class HarmonyParser:
    """prompt: its end; the state in which the answer begins is read from it. forced: it consists of reasoning and calls
    only. num_done: calls that are complete."""

    __slots__ = ("_forced", "_held", "_message", "_parts", "_raw", "_state", "_steps", "_taking")

    def __init__(self, offered: Offered, new_id: Callable[[], str], prompt: str = "", *, forced: bool = False) -> None:
        self._forced = forced
        self._taking = ToolCallBuilder(offered, new_id)
        self._parts: list[Part] = []
        self.restart(prompt)

    @property
    def num_done(self) -> int:
        """Complete calls."""
        return self._taking.num_done

    @property
    def busy(self) -> bool:
        """It is within reasoning, a call, or a header."""
        return self._state == "call" or self._message is Reasoning or bool(self._held.strip())

    def restart(self, prompt: str) -> None:
        """The answer continues after this text, which is not its own."""
        self._held = self._raw = ""
        self._state: Literal["header", "text", "call"] = "header"
        self._message: type[Content | Reasoning] = Content
        self._steps: Steps | None = None
        _, mark, message = prompt.rpartition(START)
        self.push(message.removeprefix("assistant") if mark else "")
        self._raw = ""

    def push(self, text: str) -> list[Part]:
        """What is certain with this piece."""
        text, self._held = self._held + text, ""
        while text:
            text = {"header": self._header, "text": self._text, "call": self._call}[self._state](text)
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> list[Part]:
        """What was held back, now that nothing more comes. The end of the answer ends its last message."""
        held, self._held = self._held, ""
        if self._state == "call" and (held in ENDS or not self._forced):
            self._ended()
        elif self._forced and self._message is not Reasoning:
            self._taking.cut()
            self._flush()
            self._state, self._steps = "header", None
        elif self._state == "text" or held.strip().removeprefix(START).removeprefix("assistant").strip():
            self._say(held)
        return self.push("")

    def _say(self, text: str) -> None:
        if text:
            self._parts.append(self._message(text))

    def _header(self, text: str) -> str:
        """A whole header, or the beginning of one, which is held back; anything else is content."""
        self._message = Content
        bare = text.lstrip()
        closing = next((mark for mark in CLOSING if bare.startswith(mark)), "")
        if closing:
            return bare[len(closing) :]
        if any(known.startswith(bare) for known in (*HEADS, *CLOSING)):
            self._held = text
            return ""
        if not bare.startswith(HEADS):
            self._state = "text"
            return text
        place, end = text.find(MESSAGE), _first(text, ENDS, len(text) - len(bare) + 1)
        if end >= 0 and not 0 <= place < end:
            self._say(text[:end])
            return self._closed(text[end:])
        if 0 <= place <= MAX_HEADER:
            self._open(text[:place])
            return text[place + len(MESSAGE) :]
        if len(text) <= MAX_HEADER + len(MESSAGE):
            self._held = text
            return ""
        self._state = "text"
        return text

    def _open(self, header: str) -> None:
        """A message begins."""
        recipient = RECIPIENT.search(header)
        name = recipient[1] if recipient else ""
        self._state = "text"
        if name:
            self._raw = header + MESSAGE
            function = name.removeprefix(FUNCTIONS)
            if name.startswith(FUNCTIONS) and function in self._taking.offered:
                self._taking.named(function)
                self._state = "call"
                self._steps = ArgumentsField().read("", self._taking)
                next(self._steps)
            else:
                self._say(self._raw)
        elif header.partition(CHANNEL)[2].strip().startswith("analysis"):
            self._message = Reasoning

    def _text(self, text: str) -> str:
        """The text of a message until the mark of its end."""
        end = _first(text, ENDS)
        if end >= 0:
            self._say(text[:end])
            return self._closed(text[end:])
        end = len(text) - begun(text, ENDS)
        self._say(text[:end])
        self._held = text[end:]
        return ""

    def _closed(self, text: str) -> str:
        """A message ends with the mark at the beginning of a text, unless it is that of the next."""
        self._state, self._message, self._raw = "header", Content, ""
        mark = next(mark for mark in ENDS if text.startswith(mark))
        return text if mark == START else text[len(mark) :]

    def _call(self, text: str) -> str:
        """Arguments until they are complete; white space after them is dropped."""
        if self._steps is None:
            self._state = "text"
            return text.lstrip()
        for position, c in enumerate(text):
            if not self._taking.told and c not in SPACE and c != "{":
                rest = text[position:]
                if any(mark.startswith(rest) for mark in ENDS):
                    self._held = rest
                    return ""
                if _first(rest, ENDS) == 0:
                    self._ended()
                    return self._closed(rest)
            self._raw += c
            try:
                self._steps.send(c)
            except StopIteration:
                self._steps = None
            except NoCall:
                return self._refused(text[position + 1 :], c)
            self._flush()
            if self._steps is None:
                self._raw = ""
                return text[position + 1 :]
        return ""

    def _flush(self) -> None:
        self._parts += self._taking.parts
        self._taking.parts.clear()

    def _refused(self, rest: str, c: str) -> str:
        """It is no call: all of it is content where nothing was returned, else what follows."""
        self._flush()
        self._state, self._steps = "text", None
        if self._taking.told:
            self._parts.append(CallBroken(self._taking.index, self._raw[:-1]))
        else:
            self._say(self._raw[:-1])
        self._taking.forget()
        return c + rest

    def _ended(self) -> None:
        """The message is over: it is a call without arguments, or one that was cut."""
        if self._steps is not None and not self._taking.told:
            self._taking.done()
            self._flush()
        elif self._taking.told:
            self._parts.append(CallBroken(self._taking.index, self._raw))
            self._taking.forget()
        self._state, self._steps = "header", None


def _first(text: str, marks: tuple[str, ...], start: int = 0) -> int:
    """The place of the first mark, -1 for none."""
    return min((place for mark in marks if (place := text.find(mark, start)) >= 0), default=-1)
