"""Readings of a service's pods and gateways over the last minutes, one sample per tick.

Counters become differences here, so that a restarted pod counts from zero and a removed one counts no more. A pod that
is ready and silent is named as missing and keeps its last gauges; it is never read as zero.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from kvasir_api.state import RequestTotals, RuntimeState, ServiceDemand

KEPT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledReplica:
    """A replica that takes requests or finishes them. reading: its last document; fresh: within the last few
    seconds."""

    uid: str
    name: str
    serving: bool = True
    reading: RuntimeState | None = None
    fresh: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSample:
    """One tick. at: seconds of a steady clock.

    Gauges over serving replicas: capacity_tokens (median of one replica), limit_tokens (median KV in use of those at
    their sequence limit with a queue, 0 for none), pinned_tokens, waiting, waiting_tokens, prefill_rate (median
    tokens/s, 0 for unknown). held, held_bytes: requests at gateways. Differences since the tick before: arrivals,
    ended, new_tokens (uncached prompt tokens), kv_token_seconds, query_tokens and hit_tokens of the prefix cache.
    missing: who was silent.
    """

    at: float
    serving: int = 0
    capacity_tokens: float = 0.0
    limit_tokens: float = 0.0
    pinned_tokens: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    prefill_rate: float = 0.0
    held: int = 0
    held_bytes: int = 0
    arrivals: int = 0
    ended: int = 0
    new_tokens: int = 0
    kv_token_seconds: float = 0.0
    query_tokens: int = 0
    hit_tokens: int = 0
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWindow:
    """Samples from the oldest to the newest, and the counters from which the next differences are taken, by uid."""

    samples: tuple[LoadSample, ...] = ()
    counters: Mapping[str, RequestTotals]

    @property
    def last(self) -> LoadSample | None:
        """The newest sample."""
        return self.samples[-1] if self.samples else None

    def since(self, at: float) -> tuple[LoadSample, ...]:
        """Samples taken after that time."""
        return tuple(sample for sample in self.samples if sample.at > at)


EMPTY = LoadWindow(samples=(), counters={})


def extended(
    window: LoadWindow,
    members: Sequence[ScaledReplica],
    gateways: Iterable[ServiceDemand],
    *,
    missing_gateways: Sequence[str] = (),
    now: float,
) -> LoadWindow:
    """The window with one more sample and without those older than KEPT_S."""
    heard = [m for m in members if m.reading is not None]
    serving = [m.reading for m in heard if m.serving and m.reading is not None]
    fresh = {m.uid: m.reading.totals for m in heard if m.fresh and m.reading is not None}
    steps = [_difference(window.counters.get(uid), totals) for uid, totals in fresh.items()]
    held = list(gateways)
    sample = LoadSample(
        at=now,
        serving=sum(m.serving for m in members),
        capacity_tokens=_median(r.kv.capacity_tokens for r in serving),
        limit_tokens=_median(r.kv.pinned_tokens for r in serving if r.waiting and 0 < r.max_sequences <= r.running),
        pinned_tokens=sum(r.kv.pinned_tokens for r in serving),
        waiting=sum(r.waiting for r in serving),
        waiting_tokens=sum(r.waiting_uncached_tokens for r in serving),
        prefill_rate=_median(r.rates.prefill_tokens_per_s for r in serving),
        held=sum(g.held for g in held),
        held_bytes=sum(g.held_bytes for g in held),
        arrivals=sum(s.arrivals for s in steps),
        ended=sum(s.completions + s.aborts for s in steps),
        new_tokens=sum(s.uncached_prompt_tokens for s in steps),
        kv_token_seconds=sum(s.kv_token_seconds for s in steps),
        query_tokens=sum(s.prefix_query_tokens for s in steps),
        hit_tokens=sum(s.prefix_hit_tokens for s in steps),
        missing=(*sorted(m.name for m in members if m.serving and not (m.fresh and m.reading)), *missing_gateways),
    )
    here = {m.uid for m in members}
    counters = {uid: totals for uid, totals in {**window.counters, **fresh}.items() if uid in here}
    kept = tuple(s for s in window.samples if s.at > now - KEPT_S)
    return LoadWindow(samples=(*kept, sample), counters=counters)


def _difference(before: RequestTotals | None, after: RequestTotals) -> RequestTotals:
    """What was counted between two readings. Nothing on first sight; all of it when the process restarted."""
    if before is None:
        return RequestTotals()
    if after.arrivals < before.arrivals or after.completions < before.completions:
        before = RequestTotals()
    return RequestTotals(
        arrivals=after.arrivals - before.arrivals,
        completions=after.completions - before.completions,
        aborts=max(0, after.aborts - before.aborts),
        uncached_prompt_tokens=max(0, after.uncached_prompt_tokens - before.uncached_prompt_tokens),
        prefix_query_tokens=max(0, after.prefix_query_tokens - before.prefix_query_tokens),
        prefix_hit_tokens=max(0, after.prefix_hit_tokens - before.prefix_hit_tokens),
        kv_token_seconds=max(0.0, after.kv_token_seconds - before.kv_token_seconds),
    )


def _median(values: Iterable[float]) -> float:
    """Median of those above zero, since zero means unmeasured; 0 for none."""
    known = [value for value in values if value > 0]
    return float(median(known)) if known else 0.0
