"""What a service's replicas counted within a stretch of time. Called by `window.py` and by what reads its samples."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCounts:
    """What happened within span_s seconds. Counts are fractions after a gap.

    arrivals; expired: how many of them were refused while they waited; refused: further requests, refused when they
    came, less those that a client sent again (so that a count may be negative); released: how many of both a gateway
    had held; ended, with aborts and expired ones; prompt_tokens that had to be computed; output_tokens; query_tokens
    and hit_tokens of the prefix cache; preemptions of running sequences; tokens drafted ahead, and those of them that
    were accepted; running_s, pinned_s: running requests and pinned tokens, integrated over time, so that aborted
    requests count for as long as they were there.
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


_NAMES: Final = tuple(f.name for f in fields(LoadCounts))
_VALUES: Final = attrgetter(*_NAMES)


def added(one: LoadCounts, other: LoadCounts, share: float = 1.0) -> LoadCounts:
    """One with so much of another."""
    return LoadCounts(**{name: getattr(one, name) + share * getattr(other, name) for name in _NAMES})


def total(counts: Iterable[LoadCounts]) -> LoadCounts:
    """The sum of all. Each tick adds up minutes of samples of every service, so it is written for speed."""
    sums = [sum(column) for column in zip(*map(_VALUES, counts), strict=True)]
    return LoadCounts(**dict(zip(_NAMES, sums, strict=False)))
