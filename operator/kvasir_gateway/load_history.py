"""The load of each endpoint over the last half minute, from the counters in its readings: what all gateways sent it.

Exponential means over MEMORY_S seconds. Knows no clock.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import Final

from msgspec import structs

from kvasir_api.state import RuntimeState, restarted
from kvasir_gateway.choose import MEMORY_S, EndpointLoad

PREPARE_S: Final = 1.0
"""Within which a pod counts a request that it got: it is read, checked and tokenized first."""
MOST_LAG_S: Final = 5.0
"""Before a reading, whatever the pod says how old what it reports is."""


@dataclass(frozen=True, slots=True)
class SentRequests:
    """What gateways have sent to an endpoint by a moment and that has not ended. newest_s: when, of those that a
    reading of that moment may not count yet, the newest first."""

    count: int = 0
    newest_s: Sequence[float] = ()


NOTHING_SENT: Final = SentRequests()


def lag_s(state: RuntimeState) -> float:
    """How old a request may be that a reading does not count."""
    return min(MOST_LAG_S, PREPARE_S + max(0.0, state.heartbeat_age_s))


@dataclass(slots=True)
class PodHistory:
    """state, at_s: the last reading, before which the means end. seen_s: what was sent later is not counted in it.
    ended: of the requests that were sent before, those that ended since. unheard: how many of these it does not count
    any more, since the pod knew their end first. sent_s, cold_s: when a prompt was sent last, and one that the pod did
    not hold."""

    state: RuntimeState | None = None
    at_s: float = 0.0
    arrivals_per_s: float = 0.0
    tokens_per_s: float = 0.0
    seen_s: float = inf
    ended: int = 0
    unheard: int = 0
    sent_s: float = float("-inf")
    cold_s: float = float("-inf")

    def observe(self, state: RuntimeState, at_s: float, sent: SentRequests = NOTHING_SENT) -> None:
        """A newer reading. sent: until then, so that what the pod does not count is on its way there, or over there.

        What was sent just now is on its way; a client that reads slowly would else fill a pod that is done with it.
        """
        before, elapsed_s = self.state, at_s - self.at_s
        if before is not None and elapsed_s <= 0:
            return
        if before is None or restarted(before, state):
            self.arrivals_per_s = self.tokens_per_s = 0.0
        else:
            new, old, keep = state.totals, before.totals, exp(-elapsed_s / MEMORY_S)
            self.arrivals_per_s = _mean(self.arrivals_per_s, (new.arrivals - old.arrivals) / elapsed_s, keep)
            tokens = new.uncached_prompt_tokens - old.uncached_prompt_tokens
            self.tokens_per_s = _mean(self.tokens_per_s, tokens / elapsed_s, keep)
        self.state, self.at_s, self.ended = state, at_s, 0
        uncounted = max(0, sent.count - max(0, state.running) - max(0, state.waiting))
        unseen, self.seen_s = sent.newest_s[:uncounted], at_s
        if unseen:
            self.seen_s = next((s for s in sent.newest_s if s < unseen[-1]), at_s - lag_s(state))
        self.unheard = uncounted - len(unseen)

    def current(self, load: EndpointLoad) -> EndpointLoad:
        """The load of the last reading with what is known besides. A client's next request often comes before the next
        reading, and must not wait for its own last one.
        """
        ended = max(0, self.ended - self.unheard)
        running = max(0, load.running - ended)
        waiting = max(0, load.waiting - max(0, ended - load.running))
        return structs.replace(
            load,
            running=running,
            waiting=waiting,
            waiting_uncached_tokens=0 if load.waiting and not waiting else load.waiting_uncached_tokens,
            arrivals_per_s=self.arrivals_per_s,
            busy_fraction=self.busy_fraction,
        )

    @property
    def busy_fraction(self) -> float:
        """Of the time, in which prompts were computed, 0..1; 0 before their rate was measured."""
        rate = self.state.rates.prefill_tokens_per_s if self.state else 0.0
        return min(1.0, self.tokens_per_s / rate) if rate > 0 else 0.0


class LoadHistory:
    """All endpoints, by address."""

    def __init__(self) -> None:
        self._pods: dict[str, PodHistory] = {}

    def keep(self, addresses: Collection[str]) -> None:
        """Forget all other endpoints."""
        self._pods = {address: pod for address, pod in self._pods.items() if address in addresses}

    def of(self, address: str) -> PodHistory:
        """That of an endpoint, empty at first."""
        return self._pods.setdefault(address, PodHistory())


def _mean(mean: float, value: float, keep: float) -> float:
    return max(0.0, keep * mean + (1 - keep) * value)
