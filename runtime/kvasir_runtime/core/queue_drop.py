"""Which requests give way to a new one where the queue is full: a few of the tenant that fills it most.

After the longest queue drop of Suter et al. 1998 ("Design considerations for supporting TCP with per-flow queueing"),
with a queue for each tenant, measured in tokens to be computed, or in requests, by the tenant's weight. So a tenant has
its share of a full queue whenever it comes, and may fill it while no other does. Requests differ in length by orders of
magnitude, so of a queue the fewest are dropped that make room, and not its end: one long prompt does not cost a hundred
short ones their places. Called by `deadline_admission`. Pure.
"""

from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.waiting_queue import WaitingQueue

MOST: Final = 8
"""Requests that give way to one."""


class PromisedWork(NamedTuple):
    """Waiting requests that never give way, and their tokens to be computed."""

    requests: int
    tokens: int


def promised_beside(waiting: WaitingQueue, tenant: str) -> PromisedWork:
    """That of all tenants but one: further choices of a request, streams of another engine, and what was preempted."""
    promised = [_tokens(kind) for kind in waiting.of_others(tenant) if _is_promised(kind)]
    return PromisedWork(len(promised), sum(promised))


def tokens_giving_way(
    waiting: WaitingQueue, kind: RequestKind, excess: int, gone: Collection[RequestKind]
) -> list[RequestKind]:
    """Waiting requests that have excess tokens to be computed together, of tenants with most tokens.

    None where kind's own tenant would have most of the queue, or where more than MOST or more urgent ones would have to
    go. excess: 0 or less requires none. gone: waiting requests that give way already.
    """
    return _giving_way(waiting, kind, excess, gone, waiting.tokens_by_weight(), _tokens)


def requests_giving_way(
    waiting: WaitingQueue, kind: RequestKind, excess: int, gone: Collection[RequestKind]
) -> list[RequestKind]:
    """So many waiting requests, of tenants with most requests; else as `tokens_giving_way`."""
    return _giving_way(waiting, kind, excess, gone, waiting.requests_by_weight(), _one)


def _tokens(kind: RequestKind) -> int:
    return kind.request.uncached_estimate


def _one(_: RequestKind) -> int:
    return 1


def _giving_way(
    waiting: WaitingQueue,
    kind: RequestKind,
    excess: int,
    gone: Collection[RequestKind],
    held: dict[str, float],
    size: Callable[[RequestKind], int],
) -> list[RequestKind]:
    """held: sizes of what each tenant has, by its weight."""
    tenant, weight = kind.request.request.tenant, kind.request.request.weight
    for other in gone:
        held[other.request.request.tenant] -= size(other) / other.request.request.weight
    own = held.pop(tenant, 0.0) + size(kind) / weight
    kept: dict[str, list[RequestKind]] = {}
    found: list[RequestKind] = []
    while excess > 0 and len(found) < MOST:
        most = max(held, key=held.__getitem__, default=None)
        if most is None or held[most] <= own:
            return []
        if most not in kept:
            kept[most] = _may_give_way(waiting, most, kind.request.request.priority, gone)
        if not kept[most]:
            del held[most]
            continue
        other = _next(kept[most], excess, size)
        kept[most].remove(other)
        found.append(other)
        held[most] -= size(other) / other.request.request.weight
        excess -= size(other)
    return [] if excess > 0 else found


def _may_give_way(
    waiting: WaitingQueue, tenant: str, priority: int, gone: Collection[RequestKind]
) -> list[RequestKind]:
    """Requests of a tenant, the last first, that are not more urgent and no part of what they are for has begun."""
    found = []
    for kind in waiting.last_first(tenant):
        if kind.request.request.priority < priority:
            break
        if not _is_promised(kind) and kind not in gone:
            found.append(kind)
    return found


def _is_promised(kind: RequestKind) -> bool:
    return kind.request.request.admitted or kind.request.cached_tokens is not None


def _next(last_first: list[RequestKind], excess: int, size: Callable[[RequestKind], int]) -> RequestKind:
    """The last one that suffices alone, else the largest: together the fewest."""
    for kind in last_first:
        if size(kind) >= excess:
            return kind
    return max(last_first, key=size)
