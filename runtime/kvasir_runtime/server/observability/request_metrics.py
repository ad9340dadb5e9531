"""What is measured of the requests of one API process: the interface between the code that measures and the code that
counts.

Called by the output collectors and the middleware, implemented by RuntimeMetrics. All times are seconds.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceStats:
    """One sequence after its end. Times are -1 where the sequence never came so far.

    duration_s: from the arrival of its request. queue_s, prefill_s, decode_s: in the engine's queue, from its first
    chunk to its first token, from there to its last. max_tokens: that it was allowed to have. preemptions: how often
    the engine took its place.
    """

    reason: str
    duration_s: float
    queue_s: float = -1.0
    prefill_s: float = -1.0
    decode_s: float = -1.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    max_tokens: int = 0
    preemptions: int = 0


class RequestMetrics(Protocol):
    """Receives each of these as it happens."""

    def first_token(self, since_arrival_s: float) -> None:
        """A sequence has its first token."""

    def tokens(self, count: int, gap_s: float) -> None:
        """count tokens came gap_s after the one before; they share the time."""

    def ended(self, sequence: SequenceStats) -> None:
        """A sequence ended."""

    def answered(self, num_choices: int, longest_tokens: int) -> None:
        """All choices of a prompt ended. longest_tokens: of the longest choice."""

    def rejected(self, code: str) -> None:
        """A request was refused before anything of it was computed. code: of the error."""
