"""From demand to a number of replicas: windows, rates, bounds, and holding still where too little is known.

Up at once, limited in rate. Down to the largest demand of the window, computed at the release edge, limited in rate;
never while a reading is missing, and never before a whole window was watched, so that an operator's restart removes
nothing.
"""

from dataclasses import dataclass, replace
from math import floor
from typing import Final

from kvasir_operator.scaling.demand import Demand, demand
from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.window import LoadWindow

UNPLACED_S: Final = 60.0
"""After so long without a node for some replica, more are not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChange:
    """A change of the wanted number. at: seconds of the clock of decide()."""

    at: float
    before: int
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingState:
    """What is remembered between ticks. since: when watching began. levels: (time, replicas at the release edge)."""

    wanted: int
    since: float
    levels: tuple[tuple[float, int], ...] = ()
    changes: tuple[ReplicaChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """replicas: wanted from now on. raw: what the signals require. signal: which of them, or the bound, decided.

    limited_by: what kept replicas from raw: floor, ceiling, rate, window, readings, capacity, or nothing.
    message: why there are so many replicas, without a number that changes while the decision stays the same.
    """

    replicas: int
    before: int
    raw: int
    signal: str
    limited_by: str
    message: str
    demand: Demand

    @property
    def changed(self) -> bool:
        """Whether the wanted number is another one than before."""
        return self.replicas != self.before

    @property
    def reason(self) -> str:
        """The message with the numbers behind it."""
        asked = self.demand
        if not asked.known:
            return self.message
        signals = f"KV {asked.kv:.2f} + backlog {asked.backlog:.2f}, prefill {asked.prefill:.2f} replicas"
        return f"{self.message} ({signals}; {asked.sentence})"


def decide(
    policy: ScalingPolicy, window: LoadWindow, *, unplaced_s: float, state: ScalingState, now: float
) -> tuple[ScalingDecision, ScalingState]:
    """One tick for one service. unplaced_s: how long the longest unschedulable replica has found no node, 0 for
    none."""
    upper = demand(window, edge_fraction=policy.target_fraction, horizon_s=policy.horizon_s, now=now)
    lower = demand(window, edge_fraction=policy.release_fraction, horizon_s=policy.horizon_s, now=now)
    state = _remembered(state, lower, policy, now)
    goal, limit = _goal(policy, window, upper, lower, unplaced_s=unplaced_s, state=state, now=now)
    bounded = min(max(goal, policy.min_replicas), policy.max_replicas)
    signal, limited_by = upper.signal, limit
    if bounded != goal:
        signal = limited_by = "floor" if bounded > goal else "ceiling"
    decision = ScalingDecision(
        replicas=bounded,
        before=state.wanted,
        raw=upper.replicas if upper.known else state.wanted,
        signal=signal,
        limited_by=limited_by,
        message=_message(bounded, upper, limited_by, policy),
        demand=upper,
    )
    if decision.changed:
        change = ReplicaChange(at=now, before=state.wanted, after=bounded)
        state = replace(state, wanted=bounded, changes=(*state.changes, change))
    return decision, state


def _goal(
    policy: ScalingPolicy,
    window: LoadWindow,
    upper: Demand,
    lower: Demand,
    *,
    unplaced_s: float,
    state: ScalingState,
    now: float,
) -> tuple[int, str]:
    """The number before bounds, and what limits it."""
    if not upper.known:
        return state.wanted, "readings"
    if upper.replicas > state.wanted:
        if unplaced_s > UNPLACED_S:
            return state.wanted, "capacity"
        most = _most(policy, state, now)
        return (upper.replicas, "") if upper.replicas <= most else (max(most, state.wanted), "rate")
    if state.wanted <= policy.min_replicas:
        # None may leave, however long is waited: the bound says why, from the first tick on.
        return min(state.wanted, lower.replicas), ""
    level = max((replicas for _, replicas in state.levels), default=lower.replicas)
    if level >= state.wanted:
        # Above the release edge nothing is released; only a lower present demand makes that a matter of waiting.
        return state.wanted, "window" if lower.replicas < state.wanted else ""
    if window.last is None or window.last.missing:
        return state.wanted, "readings"
    if now - state.since < policy.down_window_s:
        return state.wanted, "window"
    least = _least(policy, state, now)
    return (level, "") if level >= least else (min(least, state.wanted), "rate")


def _remembered(state: ScalingState, lower: Demand, policy: ScalingPolicy, now: float) -> ScalingState:
    """State with the present level, and without what is too old to matter."""
    kept = tuple((at, level) for at, level in state.levels if at > now - policy.down_window_s)
    levels = (*kept, (now, lower.replicas)) if lower.known else kept
    horizon = now - max(policy.up_period_s, policy.down_period_s)
    return replace(state, levels=levels, changes=tuple(c for c in state.changes if c.at > horizon))


def _most(policy: ScalingPolicy, state: ScalingState, now: float) -> int:
    """Highest number that the rate of growth allows now: a share or a number of pods above the period's beginning."""
    recent = [c for c in state.changes if c.at > now - policy.up_period_s and c.after > c.before]
    start = state.wanted - sum(c.after - c.before for c in recent)
    return start + max(policy.up_pods, floor(start * policy.up_fraction))


def _least(policy: ScalingPolicy, state: ScalingState, now: float) -> int:
    """Lowest number that the rate of shrinking allows now; always at least one may go in a period."""
    recent = [c for c in state.changes if c.at > now - policy.down_period_s and c.after < c.before]
    start = state.wanted + sum(c.before - c.after for c in recent)
    return start - max(1, floor(start * policy.down_fraction))


def _message(replicas: int, upper: Demand, limited_by: str, policy: ScalingPolicy) -> str:
    """Names what determines the count, and beside a limit what the load requires."""
    number = "1 replica" if replicas == 1 else f"{replicas} replicas"
    if limited_by == "":
        return f"{number}: the {upper.name} signal determines the count"
    required = f"the {upper.name} signal requires {upper.replicas}" if upper.known else upper.sentence
    side = "scaleUp" if upper.replicas > replicas else "scaleDown"
    why = {
        "floor": "spec.autoscaling.minReplicas determines the count",
        "ceiling": "spec.autoscaling.maxReplicas limits the count",
        "rate": f"spec.autoscaling.{side} limits how fast the count changes",
        "window": f"the largest demand of the last {policy.down_window_s:.0f} s determines the count",
        "readings": "the count stays while readings are missing",
        "capacity": "the count stays while a replica finds no node",
    }[limited_by]
    return f"{number}: {why}; {required}"
