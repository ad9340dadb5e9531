"""The requests that are being answered, by the ids that clients know them under, so that one can be aborted by id.

Used on the event loop only: responses add and remove themselves, the routes for aborts look them up.
"""

from collections.abc import Iterable, Sequence
from typing import Protocol


class Abortable(Protocol):
    """An answer under way."""

    def abort(self) -> None:
        """End it at the next step: its client gets an error, its blocks are freed."""


class RequestRegistry:
    """Answers by id. An id that a client chose may stand for several.

    owner: identity of the tenant whose answer it is. The ids of another tenant are unknown to it.
    """

    def __init__(self) -> None:
        self._by_id: dict[tuple[bytes, str], list[Abortable]] = {}

    def add(self, ids: Iterable[str], answer: Abortable, owner: bytes = b"") -> None:
        """An answer begins."""
        for one in ids:
            self._by_id.setdefault((owner, one), []).append(answer)

    def remove(self, ids: Iterable[str], answer: Abortable, owner: bytes = b"") -> None:
        """An answer ended, whatever the reason."""
        for one in ids:
            answers = self._by_id.get((owner, one), [])
            if answer in answers:
                answers.remove(answer)
            if not answers:
                self._by_id.pop((owner, one), None)

    def find(self, answer_id: str, owner: bytes = b"") -> Sequence[Abortable]:
        """The answers with this id."""
        return tuple(self._by_id.get((owner, answer_id), ()))

    def abort(self, request_id: str, owner: bytes = b"") -> int:
        """Abort all with this id; how many there were. Aborting what ended is no error."""
        answers = self.find(request_id, owner)
        for answer in answers:
            answer.abort()
        return len(answers)
