"""Finds stop strings in text that arrives in pieces, and holds back what may still become one.

Called by the stream of a request for each piece of text. Pure. The stop that is complete first wins, whatever the order
in which they were given and however token borders cut them; of two complete at the same character the longer wins.
"""

from collections.abc import Sequence


class StopMatcher:
    """One automaton (Knuth, Morris, Pratt) per stop string: constant work per character on average.

    include: keep the stop string at the end of the text. matched is the one that was found, or None so far.
    """

    __slots__ = ("_fallbacks", "_held", "_include", "_states", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if not all(stops):
            raise ValueError("a stop string is empty")
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._fallbacks = [_fallback(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)
        self._held = ""
        self._include = include
        self.matched: str | None = None

    def push(self, piece: str) -> str:
        """Text that is certain not to belong to a stop string. After a match it is cut, and further text is dropped."""
        if self.matched is not None:
            return ""
        text = self._held + piece
        for position, character in enumerate(piece, start=len(self._held)):
            stop = self._advance(character)
            if stop is not None:
                self.matched = stop
                self._held = ""
                end = position + 1
                return text[: end if self._include else end - len(stop)]
        keep = len(text) - max(self._states)
        self._held = text[keep:]
        return text[:keep]

    def flush(self) -> str:
        """What is held back, now that no more text comes."""
        rest, self._held = self._held, ""
        return rest

    def _advance(self, character: str) -> str | None:
        for index, stop in enumerate(self._stops):
            state, fallback = self._states[index], self._fallbacks[index]
            while state and stop[state] != character:
                state = fallback[state - 1]
            if stop[state] == character:
                state += 1
            if state == len(stop):
                return stop
            self._states[index] = state
        return None


def _fallback(stop: str) -> list[int]:
    """For each prefix of stop, the length of its longest proper prefix that is also its suffix."""
    table = [0] * len(stop)
    length = 0
    for position in range(1, len(stop)):
        while length and stop[position] != stop[length]:
            length = table[length - 1]
        if stop[position] == stop[length]:
            length += 1
        table[position] = length
    return table
