"""What a service's replicas counted within a stretch of time. Called by `window.py` and by what reads its samples."""

from collections.abc import Iterable
from operator import add
from typing import NamedTuple


class LoadCounts(NamedTuple):
    """What happened within span_s seconds. Counts are fractions after a gap.

    arrivals; expired: how many of them were refused while they waited; refused: further requests, refused when they
    came, less those that a client sent again (so that a count may be negative); released: how many of both a gateway
    had held, less those that it holds since (so that it may be negative); ended, with aborts and expired ones;
    prompt_tokens that had to be computed; output_tokens; query_tokens and hit_tokens of the prefix cache; preemptions
    of running sequences; tokens drafted ahead, and those of them that were accepted; running_s, pinned_s: running
    requests and pinned tokens, integrated over time, so that aborted requests count for as long as they were there.

    A named tuple, since minutes of them are added up for each service in each tick.
    """

    span_s: float = 0.0
    arrivals: float = 0.0
    expired: float = 0.0
    refused: float = 0.0
    released: float = 0.0
    ended: float = 0.0
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0
    query_tokens: float = 0.0
    hit_tokens: float = 0.0
    preemptions: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    running_s: float = 0.0
    pinned_s: float = 0.0

    @property
    def came(self) -> float:
        """Requests that came now: without those that a gateway had held, with those that were refused."""
        return self.arrivals - self.released + max(0.0, self.refused)


def added(one: LoadCounts, other: LoadCounts, share: float = 1.0) -> LoadCounts:
    """One with so much of another."""
    return LoadCounts._make(map(add, one, other if share == 1.0 else [share * more for more in other]))


def total(counts: Iterable[LoadCounts]) -> LoadCounts:
    """The sum of all; of two `added` is several times as fast."""
    return LoadCounts(*map(sum, zip(*counts, strict=True)))
