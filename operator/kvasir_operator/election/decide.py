"""From a Lease and how long it has stood still to what a candidate does next. Called by `loop.leader`.

Times in the Lease are never compared with our clock: two machines' clocks may differ by hours, and one may jump. What
counts is for how long we have seen the record unchanged, by a clock that never jumps (Kubernetes' own election does so
too). The holder stops before others may begin: RENEW_DEADLINE_S counts from before its last successful write was sent,
LEASE_S from after another candidate has read it.
"""

from dataclasses import dataclass
from typing import Final, Literal

LEASE_S: Final = 15.0
RENEW_DEADLINE_S: Final = 10.0
RETRY_S: Final = 2.0
"""15, 10 and 2 as in Kubernetes' own controllers: a dead leader is followed within 17 s, a leaving one at once."""

Verb = Literal["create", "take", "renew", "wait"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """The content of a Lease. holder: empty when it was given back. version: changes with every write."""

    holder: str
    duration_s: float
    transitions: int
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseAction:
    """What to do, and why in words for the log."""

    verb: Verb
    why: str


def decide(record: LeaseRecord | None, *, me: str, unchanged_s: float) -> LeaseAction:
    """What the candidate `me` does now. record: None when there is no Lease. unchanged_s: since we first saw this
    version of it."""
    if record is None:
        return LeaseAction(verb="create", why="there is no Lease yet")
    if record.holder == me:
        return LeaseAction(verb="renew", why="it is ours")
    if not record.holder:
        return LeaseAction(verb="take", why="it was given back")
    if unchanged_s >= record.duration_s:
        return LeaseAction(verb="take", why=f"{record.holder} has not renewed it for {unchanged_s:.0f} s")
    return LeaseAction(verb="wait", why=f"{record.holder} holds it")


def valid_s(now: float, renewed: float | None) -> float:
    """For how many seconds the holder may still write; 0 when it may not. now, renewed: steady seconds; renewed: when
    its last good write was begun, None when it never held the Lease or gave it back."""
    return max(0.0, renewed + RENEW_DEADLINE_S - now) if renewed is not None else 0.0
