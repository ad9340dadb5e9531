"""Rules of other autoscalers, written from their documentation and sources, with their usual values for LLM services.

Each reads what its real counterpart reads, at its period. Left out are the delays of the metrics pipelines that some of
them need (scrape and adapter caches), so that every peer is somewhat quicker here than it is in a cluster.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from kvasir_operator.simulation.fleet import FleetView, ScalingRule

Metric = Callable[[FleetView], float]


def running(view: FleetView) -> float:
    """Requests that hold a slot."""
    return sum(r.running for _, r in view.readings)


def waiting(view: FleetView) -> float:
    """Requests in queues of pods and gateway."""
    return sum(r.waiting for _, r in view.readings) + view.held


def active(view: FleetView) -> float:
    """Requests in flight."""
    return running(view) + waiting(view)


def kv_used(view: FleetView) -> float:
    """Share of the KV cache in use, summed over pods."""
    return sum(r.kv.pinned_tokens / r.kv.capacity_tokens for _, r in view.readings)


def prefill_backlog_s(view: FleetView) -> float:
    """Seconds of prefill that wait, at the measured rate of a pod."""
    rate = max((r.rates.prefill_tokens_per_s for _, r in view.readings), default=0.0)
    return sum(r.waiting_uncached_tokens for _, r in view.readings) / rate if rate else 0.0


@dataclass(slots=True)
class HpaRule:
    """HorizontalPodAutoscaler v2 (Kubernetes 1.34) on metrics of type AverageValue: ceil(total / target), a tolerance
    of 10 %, the largest over metrics, scale-down to the highest of the last 300 s, at most 4 pods or 100 % up in 15
    s."""

    name: str
    metrics: tuple[tuple[Metric, float], ...]
    period_s: float = 15.0
    least: int = 1
    down_window_s: float = 300.0
    tolerance: float = 0.1
    _past: deque[tuple[float, int]] = field(default_factory=deque)

    def wanted(self, view: FleetView) -> int:
        """One sync of the controller."""
        present = max(view.wanted, 1)
        asked = max(self._of(metric(view), target, present) for metric, target in self.metrics)
        self._past.append((view.now, asked))
        while self._past[0][0] < view.now - self.down_window_s:
            self._past.popleft()
        if asked < present:
            asked = min(present, max(level for _, level in self._past))
        return max(self.least, min(asked, present + max(4, present)))

    def _of(self, total: float, target: float, present: int) -> int:
        if abs(total / (target * present) - 1) <= self.tolerance:
            return present
        return ceil(total / target - 1e-9)


@dataclass(slots=True)
class KedaRule:
    """KEDA's Prometheus scaler as production-stack ships it: waiting requests, threshold 5 for each replica, polled
    every 30 s, through an HPA; to zero when nothing was active for 300 s, and back by KEDA itself."""

    name: str = "keda"
    period_s: float = 30.0
    least: int = 1
    cooldown_s: float = 300.0
    _active_at: float = 0.0
    hpa: HpaRule = field(default_factory=lambda: HpaRule(name="keda", metrics=((waiting, 5.0),)))

    def wanted(self, view: FleetView) -> int:
        """One poll."""
        asked = self.hpa.wanted(view)
        if active(view):
            self._active_at = view.now
        return asked if self.least or view.now - self._active_at < self.cooldown_s else 0


@dataclass(slots=True)
class KnativeRule:
    """Knative's pod autoscaler: concurrency, mean of 60 s, panic on the mean of 6 s at 200 %, target 70 % of the
    container's concurrency; no more than halving, and no decrease while in panic; to zero 30 s
    after the stable window was empty."""

    concurrency: float
    name: str = "knative"
    period_s: float = 2.0
    target_fraction: float = 0.7
    stable_s: float = 60.0
    panic_s: float = 6.0
    grace_s: float = 30.0
    least: int = 1
    _past: deque[tuple[float, float]] = field(default_factory=deque)
    _panic_until: float = -1.0
    _panic_most: int = 0
    _empty_since: float | None = None

    def wanted(self, view: FleetView) -> int:
        """One tick."""
        self._past.append((view.now, active(view)))
        while self._past[0][0] <= view.now - self.stable_s:
            self._past.popleft()
        target, ready = self.concurrency * self.target_fraction, max(1, view.ready)
        recent = [value for at, value in self._past if at > view.now - self.panic_s]
        stable = ceil(sum(value for _, value in self._past) / len(self._past) / target - 1e-9)
        panic = ceil(sum(recent) / len(recent) / target - 1e-9)
        stable, panic = max(stable, ready // 2), max(panic, ready // 2)
        if panic / ready >= 2:
            self._panic_until = view.now + self.stable_s
        if view.now < self._panic_until:
            self._panic_most = max(self._panic_most, panic, view.wanted)
            return max(1, self._panic_most)
        self._panic_most = 0
        if any(value for _, value in self._past):
            self._empty_since = None
        elif self._empty_since is None:
            self._empty_since = view.now
        empty_s = 0.0 if self._empty_since is None else view.now - self._empty_since
        return max(self.least if empty_s >= self.grace_s or not view.wanted else 1, stable)


@dataclass(slots=True)
class KubeAiRule:
    """KubeAI: the mean of active requests over ten minutes, every 10 s, over its target of 100; three ticks below for a
    decrease. Its proxy starts the first replica."""

    name: str = "kubeai"
    period_s: float = 10.0
    target: float = 100.0
    window_s: float = 600.0
    least: int = 1
    _past: deque[float] = field(default_factory=deque)
    _below: int = 0

    def wanted(self, view: FleetView) -> int:
        """One tick."""
        kept = int(self.window_s / self.period_s)
        if not self._past:
            self._past.extend([0.0] * kept)
        self._past.append(active(view))
        self._past.popleft()
        asked = max(self.least, int(active(view) > 0), ceil(sum(self._past) / kept / self.target - 1e-9))
        self._below = self._below + 1 if asked < view.wanted else 0
        return asked if asked > view.wanted or self._below >= 3 else view.wanted


PEERS: Final = ("hpa", "knative", "keda", "kubeai", "llm-d")
TOKEN_BACKLOG_S: Final = 1.5
"""τ of llm-d's example: the objective for the first token less the prompt's own time."""


def peers(concurrency: float, *, least: int = 1) -> list[ScalingRule]:
    """All of them. concurrency: requests that one pod serves well, which a person would have measured for them. least:
    replicas, which may be 0 for those that can."""
    return [
        HpaRule(name="hpa", metrics=((active, concurrency),)),
        KnativeRule(concurrency=concurrency, least=least),
        KedaRule(least=least),
        KubeAiRule(target=concurrency, least=least),
        HpaRule(name="llm-d", metrics=((prefill_backlog_s, TOKEN_BACKLOG_S), (kv_used, 0.8))),
    ]
