"""One parser of reasoning and tool calls for each choice of a chat, configured by the model's formats and the request.

output_format.py makes the ParserConfig, which is plain data; each choice has an AnswerParser of its own. Pure: the
function that makes identifiers is given.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kvasir_runtime.frontend.parsing import formats, harmony
from kvasir_runtime.frontend.parsing.formats import HARMONY
from kvasir_runtime.frontend.parsing.harmony import HarmonyParser
from kvasir_runtime.frontend.parsing.parts import CallEnd, Content, Part, Reasoning, merged
from kvasir_runtime.frontend.parsing.reasoning_parser import ReasoningParser, place_of
from kvasir_runtime.frontend.parsing.tool_call_builder import Offered
from kvasir_runtime.frontend.parsing.tool_parser import ToolParser

LETTERS: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParserConfig:
    """What to read in the answers to one request.

    tools, reasoning: names of formats, "" for none. offered: the functions that may be called; without any, calls are
    not looked for. prompt: its end, since templates open or close reasoning there. single: an answer ends with its
    first call. forced: behind reasoning there are only calls, so what is cut there is one. shown: whether the answer
    includes reasoning. within: the answer continues a text and is not at its beginning."""

    tools: str = ""
    reasoning: str = ""
    offered: Offered
    prompt: str = ""
    single: bool = False
    forced: bool = False
    shown: bool = True
    within: bool = False

    @property
    def is_harmony(self) -> bool:
        """Whether the answer consists of channels."""
        return HARMONY in {self.tools, self.reasoning}

    @property
    def idle(self) -> bool:
        """Whether there is nothing to look for."""
        return not self.reasoning and not (self.tools and self.offered) and self.tools != HARMONY


class AnswerParser:
    """Reads one answer. called: it has complete calls. full: it has all that it may have, and can end here."""

    __slots__ = ("_calls", "_config", "_harmony", "_thoughts", "called", "full")

    def __init__(self, config: ParserConfig, new_id: Callable[[], str]) -> None:
        self.called = self.full = False
        self._config = config
        self._harmony: HarmonyParser | None = None
        self._thoughts: ReasoningParser | None = None
        self._calls: ToolParser | None = None
        if config.is_harmony:
            self._harmony = HarmonyParser(config.offered, new_id, config.prompt, forced=config.forced)
            return
        if config.reasoning:
            tags = formats.REASONING[config.reasoning]
            self._thoughts = ReasoningParser(tags, place_of(config.prompt, tags), within=config.within)
        if config.tools and config.offered:
            self._calls = ToolParser(formats.TOOLS[config.tools], config.offered, new_id)

    def push(self, text: str) -> list[Part]:
        """What is certain with this piece of text."""
        if self._harmony is not None:
            return self._kept(self._harmony.push(text))
        thoughts, text = self._thoughts.push(text) if self._thoughts is not None else ([], text)
        return self._kept([*thoughts, *self._rest(text)])

    def finish(self) -> list[Part]:
        """What was held back, now that no more text comes."""
        if self._harmony is not None:
            return self._kept(self._harmony.finish())
        thoughts, text = self._thoughts.finish() if self._thoughts is not None else ([], "")
        if self._calls is not None and self._config.forced:
            return self._kept([*thoughts, *(() if self._thinks else self._calls.cut())])
        rest = self._rest(text)
        return self._kept([*thoughts, *rest, *(self._calls.finish() if self._calls is not None else ())])

    @property
    def busy(self) -> bool:
        """It is within reasoning or a call."""
        if self._harmony is not None:
            return self._harmony.busy
        return self._thinks or (self._calls is not None and self._calls.busy)

    def restart(self, prompt: str) -> None:
        """The answer continues after this text, which is not its own; what was held back has been returned."""
        if self._harmony is not None:
            self._harmony.restart(prompt)
        if self._thoughts is not None:
            tags = formats.REASONING[self._config.reasoning]
            self._thoughts = ReasoningParser(tags, place_of(prompt, tags))
        if self._calls is not None:
            self._calls.restart()

    @property
    def _thinks(self) -> bool:
        return self._thoughts is not None and self._thoughts.place == "thinking"

    def _rest(self, text: str) -> list[Part]:
        if not text:
            return []
        return self._calls.push(text) if self._calls is not None else [Content(text)]

    def _kept(self, parts: list[Part]) -> list[Part]:
        """The parts that the answer includes."""
        if len(parts) == 1 and isinstance(parts[0], Content) and not self.full:
            return parts  # most pieces by far
        kept: list[Part] = []
        for part in parts:
            if self.full:
                break
            if isinstance(part, CallEnd):
                self.called = True
                self.full = self._config.single
            if self._config.shown or not isinstance(part, Reasoning):
                kept.append(part)
        return merged(kept)


def marks(tools: str, reasoning: str) -> list[str]:
    """Every fixed text of the formats, so that special tokens among them are not hidden from their readers."""
    found = list(harmony.MARKS) if HARMONY in {tools, reasoning} else []
    if tools in formats.TOOLS:
        found += [text for row in formats.TOOLS[tools].rows for text in formats.literals(row)]
    if reasoning in formats.REASONING:
        found += [*formats.REASONING[reasoning].begin, *formats.REASONING[reasoning].end]
    return found


def call_id(tools: str, seed: str) -> str:
    """The identifier of a call, a function of the seed."""
    nine = tools in formats.TOOLS and formats.TOOLS[tools].nine
    digest = hashlib.sha256(seed.encode()).digest()
    return ("" if nine else "call_") + "".join(LETTERS[byte % len(LETTERS)] for byte in digest[: 9 if nine else 24])
