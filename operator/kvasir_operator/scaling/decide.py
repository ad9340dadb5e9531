"""From demand to a number of replicas: windows, rates, bounds, and holding still where too little is known.

Up at once, limited in rate. Down to the largest demand of the window, computed at the release edge, so that one replica
fewer would still serve it by every signal; limited in rate; never while a reading is missing, and never before a whole
window was watched, so that an operator's restart removes nothing. To zero at once after idleSeconds; from zero to what
the load requires of replicas such as there were last.
"""

from dataclasses import dataclass, field, replace
from math import floor, inf
from typing import Final

from kvasir_operator.scaling import sentence
from kvasir_operator.scaling.demand import Demand, demand, release_edge, target_edge
from kvasir_operator.scaling.idle import ReplicaFloor, replica_floor
from kvasir_operator.scaling.level_window import LevelWindow
from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.window import LoadSample, LoadWindow
from kvasir_operator.scaling.workload import workload

LIMITS: Final = (
    "floor",
    "ceiling",
    "rate",
    "window",
    "readings",
    "capacity",
    "paused",
    "activity",
    "reserve",
    "idle",
)
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
    """What is remembered between ticks. since: when watching began; unserved_at: when some replica was wanted and none
    was ready, last. levels: replicas at the release edge."""

    wanted: int
    since: float
    unserved_at: float = -inf
    levels: LevelWindow = field(default_factory=LevelWindow)
    changes: tuple[ReplicaChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingDecision:
    """replicas: wanted from now on. raw: what the signals require, and what minReplicas 0 keeps for requests.

    signal: which of them, or the bound, decided.
    limited_by: what kept replicas from raw, one of LIMITS, or nothing.
    message: why there are so many replicas, without a number that changes while the decision stays the same. demand: at
    the edge above which replicas are added; release: at the edge below which one is removed. policy: as it was then.
    """

    replicas: int
    before: int
    raw: int
    signal: str
    limited_by: str
    message: str
    demand: Demand
    release: Demand
    policy: ScalingPolicy

    @property
    def changed(self) -> bool:
        """Whether the wanted number is another one than before."""
        return self.replicas != self.before

    @property
    def reason(self) -> str:
        """Why the number changed, for a person: what needs how many replicas, and what limits them."""
        ruling = self.demand if self.replicas >= self.before else self.release
        return sentence.reason(ruling, self.limited_by, self.policy)

    @property
    def arithmetic(self) -> str:
        """The numbers behind the reason."""
        return sentence.arithmetic(self.demand)


def decide(
    policy: ScalingPolicy, window: LoadWindow, *, unplaced_s: float, state: ScalingState, now: float
) -> tuple[ScalingDecision, ScalingState]:
    """One tick for one service. unplaced_s: how long the longest unschedulable replica has found no node, 0 for
    none."""
    load = workload(window, now=now)
    upper = demand(_awaited(window), load, policy, target_edge(policy))
    lower = demand(window.last, load, policy, release_edge(policy))
    state = _remembered(state, lower, policy, window, now)
    since = max(state.since, state.unserved_at)
    least = replica_floor(policy, window, load, wanted=state.wanted, since=since, now=now)
    goal, limit = _goal(policy, window, upper, lower, least, unplaced_s=unplaced_s, state=state, now=now)
    bounded = min(max(goal, least.replicas), policy.max_replicas)
    signal, limited_by = str(upper.signal), limit
    if policy.paused:
        bounded, limited_by = state.wanted, "paused"
    elif bounded != goal:
        signal = limited_by = least.why if bounded > goal else "ceiling"
    elif limit == "idle":
        signal = limit
    decision = ScalingDecision(
        replicas=bounded,
        before=state.wanted,
        raw=max(upper.replicas if upper.known else state.wanted, 0 if policy.min_replicas else least.replicas),
        signal=signal,
        limited_by=limited_by,
        message=sentence.message(bounded, upper, limited_by, policy),
        demand=upper,
        release=lower,
        policy=policy,
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
    least: ReplicaFloor,
    *,
    unplaced_s: float,
    state: ScalingState,
    now: float,
) -> tuple[int, str]:
    """The number before bounds, and what limits it."""
    if least.idle and (not state.wanted or (lower.known and not _silent(window))):
        return 0, "idle"
    if window.last is None or not upper.known:
        return state.wanted, "readings"
    if upper.replicas > state.wanted:
        if unplaced_s > UNPLACED_S:
            return state.wanted, "capacity"
        # Where a pod's reading contradicts itself the others' may be wrong as well: one step, then another look.
        most = _most(policy, state, now, cautious=bool(window.last.contradictions))
        return (upper.replicas, "") if upper.replicas <= most else (max(most, state.wanted), "rate")
    if not lower.known:
        return state.wanted, "readings"
    if state.wanted <= least.replicas:
        # None may leave, however long is waited: the bound says why, from the first tick on.
        return min(state.wanted, lower.replicas), ""
    level = lower.replicas if state.levels.largest is None else state.levels.largest
    if level >= state.wanted:
        # Above the release edge nothing is released; only a lower present demand makes that a matter of waiting.
        return state.wanted, "window" if lower.replicas < state.wanted else ""
    if window.last.missing:
        return state.wanted, "readings"
    if now - state.since < policy.down_window_s:
        return state.wanted, "window"
    lowest = _lowest(policy, state, now)
    return (level, "") if level >= lowest else (min(lowest, state.wanted), "rate")


def _awaited(window: LoadWindow) -> LoadSample | None:
    """The last sample; while no replica serves with the capacity of one as last known, so that what gateways hold
    needs a number of replicas."""
    last = window.last
    if last is None or last.serving:
        return last
    return replace(last, typical=window.known.capacity)


def _silent(window: LoadWindow) -> bool:
    """Whether some replica or gateway does not answer."""
    return window.last is None or bool(window.last.missing or window.last.lost)


def _remembered(
    state: ScalingState, lower: Demand, policy: ScalingPolicy, window: LoadWindow, now: float
) -> ScalingState:
    """State with the present level, and without what is too old to matter."""
    if state.wanted and window.last is not None and not window.last.serving:
        state = replace(state, unserved_at=now)
    levels = state.levels.since(now - policy.down_window_s)
    if lower.known:
        # Above the bound all levels are alike, which bounds how many there are.
        levels = levels.extended(now, min(lower.replicas, policy.max_replicas))
    horizon = now - max(policy.up_period_s, policy.down_period_s)
    return replace(state, levels=levels, changes=tuple(c for c in state.changes if c.at > horizon))


def _most(policy: ScalingPolicy, state: ScalingState, now: float, *, cautious: bool) -> int:
    """Highest number that the rate of growth allows now: a share or a number of pods above the period's beginning, one
    with caution."""
    recent = [c for c in state.changes if c.at > now - policy.up_period_s and c.after > c.before]
    start = state.wanted - sum(c.after - c.before for c in recent)
    return start + (1 if cautious else max(policy.up_pods, floor(start * policy.up_fraction)))


def _lowest(policy: ScalingPolicy, state: ScalingState, now: float) -> int:
    """Lowest number that the rate of shrinking allows now; always at least one may go in a period."""
    recent = [c for c in state.changes if c.at > now - policy.down_period_s and c.after < c.before]
    start = state.wanted + sum(c.before - c.after for c in recent)
    return start - max(1, floor(start * policy.down_fraction))
