"""What each tenant has been served, so that of several that wait the one with the least comes next.

Called by the scheduler and its queue. Virtual token counters after Sheng et al. 2024 ("Fairness in Serving Large
Language Models"): a token of a prompt that had to be computed counts 1, a token of an answer 2, both divided by the
tenant's weight. A tenant that comes back is lifted to the least served of those that wait, so that nothing is saved up
by being away, and nothing that a tenant was served out of turn is forgiven. Between two tenants that always wait,
services divided by weights differ by what is in flight at most. Tokens of answers are counted when a choice depends on
them, not with every token.
"""

from collections.abc import Collection, Iterable
from typing import Final

from kvasir_runtime.core.kinds.interface import RequestKind

PROMPT_COST: Final = 1.0
ANSWER_COST: Final = 2.0
KEPT_TENANTS: Final = 1024
"""Counters kept before those of absent tenants that mean nothing any more are dropped."""


class FairShares:
    """level: the least counter of those that waited when a tenant came last, below which no counter that matters is."""

    __slots__ = ("_counters", "level")

    def __init__(self) -> None:
        self._counters: dict[str, float] = {}
        self.level = 0.0

    def counter(self, tenant: str) -> float:
        """Weighted tokens that a tenant was served; at least the level."""
        return max(self.level, self._counters.get(tenant, 0.0))

    def queued(self, kind: RequestKind, waiting: Collection[str], running: Iterable[RequestKind]) -> None:
        """A request comes to wait. waiting: tenants that do; where none does, what was served so far kept none
        waiting, and counts no more. running: requests that run.
        """
        if not waiting:
            self._counters.clear()
            self.level = 0.0
            for other in running:
                other.request.uncounted = other.remaining
            return
        if kind.request.request.tenant in waiting:
            return
        self.settle(running)
        self.level = min(map(self.counter, waiting))
        if len(self._counters) > KEPT_TENANTS:
            self._counters = {name: count for name, count in self._counters.items() if count > self.level}

    def admitted(self, kind: RequestKind, prompt_tokens: int) -> None:
        """A request got its row. prompt_tokens: to be computed of its prompt, 0 where they were counted before."""
        request = kind.request
        self._charge(request.request.tenant, PROMPT_COST * prompt_tokens / request.request.weight)
        request.uncounted = kind.remaining

    def settle(self, kinds: Iterable[RequestKind]) -> None:
        """Count what these running requests generated since they were counted last."""
        for kind in kinds:
            request, remaining = kind.request, kind.remaining
            if remaining < request.uncounted:
                cost = ANSWER_COST * (request.uncounted - remaining) / request.request.weight
                self._charge(request.request.tenant, cost)
                request.uncounted = remaining

    def _charge(self, tenant: str, cost: float) -> None:
        self._counters[tenant] = self.counter(tenant) + cost
