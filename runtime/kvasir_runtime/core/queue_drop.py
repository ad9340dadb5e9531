"""Which requests give way to a new one where the queue is full: the last ones of the tenant that fills it most.

Longest queue drop of Suter et al. 1998 ("Design considerations for supporting TCP with per-flow queueing"), with a
queue for each tenant, measured in tokens to be computed by the tenant's weight. So a tenant has its share of a full
queue whenever it comes, and may fill it while no other does. Called by `deadline_admission`. Pure.
"""

from collections.abc import Collection, Iterator

from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.waiting_queue import WaitingQueue


def giving_way(
    waiting: WaitingQueue, kind: RequestKind, excess: int, gone: Collection[RequestKind]
) -> list[RequestKind]:
    """Waiting requests that have excess tokens together; none where kind's own tenant would have most of the queue.

    excess: above 0. gone: waiting requests that give way already.
    """
    tenant, weight = kind.request.request.tenant, kind.request.request.weight
    held = waiting.tokens_by_weight()
    for other in gone:
        held[other.request.request.tenant] -= other.request.uncached_estimate / other.request.request.weight
    own = held.pop(tenant, 0.0) + kind.request.uncached_estimate / weight
    lasts: dict[str, Iterator[RequestKind]] = {}
    found: list[RequestKind] = []
    while excess > 0:
        most = max(held, key=held.__getitem__, default=None)
        if most is None or held[most] <= own:
            return []
        last = next(lasts.setdefault(most, _last_first(waiting, most, gone)), None)
        if last is None:
            del held[most]
            continue
        found.append(last)
        held[most] -= last.request.uncached_estimate / last.request.request.weight
        excess -= last.request.uncached_estimate
    return found


def _last_first(waiting: WaitingQueue, tenant: str, gone: Collection[RequestKind]) -> Iterator[RequestKind]:
    """Requests of a tenant that may give way: no part of what they are for has begun."""
    for kind in waiting.last_first(tenant):
        if not kind.request.request.admitted and kind.request.cached_tokens is None and kind not in gone:
            yield kind
