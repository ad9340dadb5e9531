"""Finds the calls of a format in an answer that comes in pieces, and gives everything else as content.

One reader per choice. What turns out to be no call is content again, as it was written; only white space around calls
is dropped. How the text was cut changes nothing. Pure.
"""

from collections.abc import Callable, Collection
from typing import Final

from kvasir_runtime.frontend.parsing.char_machines import NoCall, Steps, literal, one_of
from kvasir_runtime.frontend.parsing.formats import CallFormat, ToolFormat
from kvasir_runtime.frontend.parsing.parts import CallBroken, Content, Part
from kvasir_runtime.frontend.parsing.tool_call_builder import Offered, ToolCallBuilder

MAX_UNDECIDED: Final = 65_536
"""Characters after a mark that may come before it is clear whether they are a call."""


class ToolParser:
    """new_id: makes the identifier of a call. num_done: calls that are complete."""

    __slots__ = (
        "_attempts",
        "_format",
        "_gap",
        "_held",
        "_mark",
        "_marks",
        "_new_id",
        "_num_told",
        "_offered",
        "_parts",
        "_raw",
        "num_done",
    )

    def __init__(self, written: ToolFormat, offered: Offered, new_id: Callable[[], str]) -> None:
        self.num_done = 0
        self._marks = {row.begin[0] for row in written.rows if row.begin[0]}
        self._format = written
        self._offered = offered
        self._new_id = new_id
        self._num_told = 0
        self._parts: list[Part] = []
        self._attempts: list[_Attempt] = []
        self._raw: list[str] = []
        self._held = self._gap = self._mark = ""
        self.restart()

    def restart(self) -> None:
        """From here on it is a new text of the same answer, such as the one after an inserted result."""
        self._try("", "")

    @property
    def busy(self) -> bool:
        """A call may have begun, or its closing is missing."""
        return any(one.counted for one in self._attempts) or bool("".join(self._raw).strip())

    def push(self, text: str) -> list[Part]:
        """What is certain with this piece."""
        self._read(text)
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> list[Part]:
        """What was held back, now that nothing more comes. A call in the making is none."""
        while self._attempts:
            attempt, raw = self._attempts[0], "".join(self._raw)
            if attempt.taking.told:
                self._parts.append(CallBroken(attempt.taking.index, raw))
                self._leave()
            elif attempt.counted:
                self._leave()
                self._read("" if attempt.may_drop(raw) else raw)
            else:
                self._read(self._refused())
        if self._held.strip() or not self.num_done:
            self._say(self._held)
        self._held = ""
        return self.push("")

    def cut(self) -> list[Part]:
        """What was held back of an answer that consists of calls only: the call in which it was cut, and no content."""
        attempts = self._attempts or [_Attempt(self._format.rows[0], self._builder())]
        attempt = next((one for one in attempts if one.taking.is_named), attempts[0])
        attempt.taking.cut()
        self._tell(attempt)
        self._leave()
        self._held = ""
        return self.push("")

    def _read(self, text: str) -> None:
        while text:
            text = self._inside(text) if self._attempts else self._outside(text)

    def _say(self, text: str) -> None:
        if text:
            self._parts.append(Content(text))

    def _outside(self, text: str) -> str:
        """Content until a mark; the text after it. The end is held back where it may belong to a mark."""
        text = self._held + text
        self._held = ""
        found = [(place, -len(mark), mark) for mark in self._marks if (place := text.find(mark)) >= 0]
        if found:
            place, _, mark = min(found)
            content = text[:place].rstrip()
            self._say(content)
            self._try(mark, text[len(content) : place])
            return text[place + len(mark) :]
        end = len(text[: len(text) - begun(text, self._marks)].rstrip())
        self._say(text[:end])
        self._held = text[end:]
        return ""

    def _try(self, mark: str, gap: str) -> None:
        """Try every row that begins with a mark on what comes after it. gap: white space before it."""
        rows = [row for row in self._format.rows if row.begin[0] == mark]
        self._attempts = [_Attempt(row, self._builder()) for row in rows]
        self._mark, self._gap = mark, gap
        self._raw = [gap, mark]

    def _builder(self) -> ToolCallBuilder:
        return ToolCallBuilder(self._offered, self._new_id, self._num_told)

    def _leave(self) -> None:
        self._attempts, self._raw = [], []

    def _inside(self, text: str) -> str:
        """Feed the attempts until they end; the text that is left for outside."""
        for position, c in enumerate(text):
            rest = text[position + 1 :] if position + 1 < len(text) else ""
            self._raw.append(c)
            left = self._fed(c)
            if left is not None:
                return left + rest
            if len(self._raw) > MAX_UNDECIDED and not self._attempts[0].taking.told:
                return self._refused() + rest
        return ""

    def _fed(self, c: str) -> str | None:
        """None to go on; else what is to be read outside. The first attempt that returns something is chosen."""
        for attempt in self._attempts if len(self._attempts) == 1 else tuple(self._attempts):
            try:
                left = attempt.takes(c)
            except NoCall:
                if attempt.taking.told:
                    return self._broken(attempt, c)
                self._attempts = [other for other in self._attempts if other is not attempt]
                if not self._attempts:
                    return self._refused() if not attempt.counted else self._unread()
                continue
            if attempt.taking.parts:
                self._attempts = [attempt]
                self._tell(attempt)
            if left is not None:
                self._leave()
                return left
            if self._attempts[0] is attempt and attempt.taking.told:
                break
        return None

    def _tell(self, attempt: "_Attempt") -> None:
        taking = attempt.taking
        self._parts += taking.parts
        taking.parts.clear()
        self._num_told = taking.index + 1
        if taking.num_done > attempt.counted:
            self.num_done += taking.num_done - attempt.counted
            attempt.counted = taking.num_done
            self._raw = []

    def _broken(self, attempt: "_Attempt", c: str) -> str:
        """It was returned and went wrong: the character at fault and what follows is content."""
        self._tell(attempt)
        self._parts.append(CallBroken(attempt.taking.index, "".join(self._raw[:-1])))
        self._leave()
        return c

    def _unread(self) -> str:
        """What was read after a complete call."""
        raw = "".join(self._raw)
        self._leave()
        return raw

    def _refused(self) -> str:
        """The mark was none: it is content, and what follows is read again."""
        raw = self._unread()
        before = self._gap + self._mark
        self._say(before)
        return raw[len(before) :]


class _Attempt:
    """One row, tried on the text after its mark. counted: calls that it completed and returned."""

    __slots__ = ("_row", "_steps", "counted", "taking")

    def __init__(self, row: CallFormat, taking: ToolCallBuilder) -> None:
        self.taking = taking
        self.counted = 0
        self._row = row
        self._steps = _section(row, taking)
        next(self._steps)

    def takes(self, c: str) -> str | None:
        """None to go on; else the section has ended, and this is what of c is left. Raises NoCall."""
        try:
            self._steps.send(c)
        except StopIteration as end:
            return str(end.value)
        return None

    def may_drop(self, rest: str) -> bool:
        """Whether the end of the answer after a call is only a part of what closes the call and its section."""
        closing = ""
        for step in reversed(self._row.item):
            if not isinstance(step, str):
                break
            closing = step + closing
        rest = "".join(rest.split())
        texts = (closing + self._row.end, closing + (self._row.between or ""))
        return any("".join(text.split()).startswith(rest) for text in texts)


def _section(row: CallFormat, taking: ToolCallBuilder) -> Steps:
    """Everything of a row after its mark. Where nothing stands between calls, the beginning of a call marks it."""
    c = ""
    for text in row.begin[1:]:
        c = yield from literal(c, text)
    between, first = row.between, row.item[0]
    told = between is not None and not between.strip()
    mark = first if isinstance(first, str) else "{"
    onward = [] if between is None else [mark if told else between]
    ends = [row.end] if row.end.strip() else []
    item = row.item
    while True:
        for step in item:
            c = yield from literal(c, step) if isinstance(step, str) else step.read(c, taking)
        if not onward and not ends:
            return c
        which: list[int] = []
        c = yield from one_of([*onward, *ends], c, which)
        if which[0] >= len(onward):
            return c
        if told and isinstance(first, str):
            item = row.item[1:]
        elif told:
            c = mark


def begun(text: str, marks: Collection[str]) -> int:
    """How many characters at the end of a text may be the beginning of a mark. Run once per token, so it is short."""
    longest = 0
    for mark in marks:
        place = text.find(mark[0], max(0, len(text) - len(mark) + 1))
        while place >= 0 and not mark.startswith(text[place:]):
            place = text.find(mark[0], place + 1)
        if place >= 0:
            longest = max(longest, len(text) - place)
    return longest
