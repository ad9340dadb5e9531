"""Separates reasoning from what follows, by the tags of a family. One parser per choice, before the parser of calls.

Reasoning stands at the beginning of an answer only. How the text was cut changes nothing. Pure.
"""

from typing import Literal

from kvasir_runtime.frontend.parsing.formats import ReasoningTags
from kvasir_runtime.frontend.parsing.parts import Reasoning
from kvasir_runtime.frontend.parsing.tool_parser import begun

Place = Literal["start", "thinking", "after"]


def place_of(prompt: str, tags: ReasoningTags) -> Place:
    """Where an answer begins whose prompt ends so: templates open the reasoning, or close it to have none."""
    end = prompt.rstrip()
    if end.endswith(tags.begin):
        return "thinking"
    return "after" if end.endswith(tags.end) else "start"


class ReasoningParser:
    """White space around reasoning belongs to the tags. within: the answer continues a text, whose spaces are its
    own."""

    __slots__ = ("_begun", "_held", "_tags", "place")

    def __init__(self, tags: ReasoningTags, place: Place, *, within: bool = False) -> None:
        self.place = place
        self._tags = tags
        self._held = ""
        self._begun = within

    def push(self, text: str) -> tuple[list[Reasoning], str]:
        """Thoughts that are certain with this piece, and what is after them."""
        text = self._held + text
        self._held = ""
        if self.place == "start":
            text = self._decided(text)
        if self.place == "thinking":
            return self._thinking(text)
        if self.place == "start":
            return [], ""
        return [], self._after(text)

    def finish(self) -> tuple[list[Reasoning], str]:
        """What was held back, now that nothing more comes."""
        held, self._held = self._held, ""
        if self.place == "start":
            return [], held
        if self.place == "thinking" and held.strip():
            return [Reasoning(held)], ""
        return [], ""

    def _decided(self, text: str) -> str:
        """Whether it begins with reasoning; the text after the tag."""
        bare = text.lstrip()
        for tag in self._tags.begin:
            if bare.startswith(tag):
                self.place = "thinking"
                return bare[len(tag) :]
        if any(tag.startswith(bare) for tag in self._tags.begin):
            self._held = text
            return ""
        self.place = "thinking" if self._tags.implied else "after"
        self._begun = not self._tags.implied
        return text

    def _thinking(self, text: str) -> tuple[list[Reasoning], str]:
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        found = [(place, tag) for tag in self._tags.end if (place := text.find(tag)) >= 0]
        if found:
            place, tag = min(found)
            reasoning = text[:place].rstrip()
            self.place, self._begun = "after", False
            return [Reasoning(reasoning)] if reasoning else [], self._after(text[place + len(tag) :])
        end = len(text[: len(text) - begun(text, self._tags.end)].rstrip())
        self._held = text[end:]
        return [Reasoning(text[:end])] if end else [], ""

    def _after(self, text: str) -> str:
        """Without the blank lines between reasoning and answer."""
        if not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return text
