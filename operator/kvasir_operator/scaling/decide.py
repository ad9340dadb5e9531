"""From demand to a number of replicas: windows, rates, bounds, and holding still where too little is known.

Up at once, limited in rate, to what will be required when a replica that is added now is ready. Down to the largest
demand of the window, computed at the release edge, so that one replica fewer would still serve it by every signal, or
to that of two windows at the steady edge; limited in rate; never while a reading is missing, and never before a whole
window was watched, so that an operator's restart removes nothing. The window grows while decreases have to be taken
back. To zero at once after idleSeconds; from zero to what the load requires of replicas such as there were last.
"""

from dataclasses import dataclass
from math import floor, inf
from typing import Final, NamedTuple

from msgspec import Struct, structs

from kvasir_operator.scaling import sentence
from kvasir_operator.scaling.demand import ComingReplicas, Demand, demand, release_edge, steady_edge, target_edge
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
STEADY_WINDOWS: Final = 2
"""After so many windows in which fewer replicas would have sufficed at the steady edge, the release edge is no reason
to keep more."""
SETBACK_WINDOWS: Final = 12
MOST_PATIENCE: Final = 4
"""Each decrease that had to be taken back within a window doubles the window for SETBACK_WINDOWS, up to so many
times its length."""
MOST_KEPT_S: Final = 3_600.0
"""So long each change is remembered at most: the longest period, and many starts."""
UNPLACED_S: Final = 60.0
"""After so long without a node for some replica, more are not asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaChange:
    """A change of the wanted number. at: seconds of the clock of decide()."""

    at: float
    before: int
    after: int


class ScalingState(NamedTuple):
    """What is remembered between ticks. since: when watching began; unserved_at: when some replica was wanted and none
    was ready, last. levels: replicas at the release edge; steady: at the steady edge. setbacks: when replicas were
    added within a window after some were removed."""

    wanted: int
    since: float
    unserved_at: float = -inf
    levels: LevelWindow = LevelWindow()
    steady: LevelWindow = LevelWindow()
    setbacks: tuple[float, ...] = ()
    changes: tuple[ReplicaChange, ...] = ()


class ScalingDecision(Struct, frozen=True, kw_only=True):
    """replicas: wanted from now on. raw: what the signals require, and what minReplicas 0 keeps for requests.

    signal: which of them, or the bound, decided.
    limited_by: what kept replicas from raw, one of LIMITS, or nothing. demand: at the edge above which replicas are
    added; release: at the edge below which one is removed. policy: as it was then.
    """

    replicas: int
    before: int
    raw: int
    signal: str
    limited_by: str
    demand: Demand
    release: Demand
    policy: ScalingPolicy

    @property
    def changed(self) -> bool:
        """Whether the wanted number is another one than before."""
        return self.replicas != self.before

    @property
    def message(self) -> str:
        """Why there are so many replicas, without a number that changes while the decision stays the same."""
        return sentence.message(self.replicas, self.demand, self.limited_by, self.policy)

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
    if (patience := _patience(policy, state, now)) > 1:
        policy = structs.replace(policy, down_window_s=patience * policy.down_window_s)
    coming = ComingReplicas(start_s=policy.cold_start_s, begun_s=_begun_s(policy, window, state, now))
    ahead, target, steady = load.ahead(coming.start_s), target_edge(policy), steady_edge(policy)
    upper = demand(_awaited(window), ahead, policy, target, coming)
    kept = upper if steady == target else demand(_awaited(window), ahead, policy, steady, coming)
    lower = demand(window.last, load, policy, release_edge(policy))
    state = _remembered(state, kept, lower, policy, window, now)
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
        demand=upper,
        release=lower,
        policy=policy,
    )
    if decision.changed:
        change = ReplicaChange(at=now, before=state.wanted, after=bounded)
        setbacks = _setbacks(state, change, policy)
        state = state._replace(wanted=bounded, changes=(*state.changes, change), setbacks=setbacks)
    return decision, state


def _patience(policy: ScalingPolicy, state: ScalingState, now: float) -> int:
    """Factor of the window: a load that comes back as soon as replicas have left for it finds them there."""
    recent = sum(at > now - SETBACK_WINDOWS * policy.down_window_s for at in state.setbacks)
    return min(MOST_PATIENCE, 1 << recent)


def _setbacks(state: ScalingState, change: ReplicaChange, policy: ScalingPolicy) -> tuple[float, ...]:
    """The last ones, with this change where it takes back a decrease."""
    back = change.after > change.before and any(
        c.after < c.before and c.at > change.at - policy.down_window_s for c in state.changes
    )
    return (*state.setbacks, change.at)[-MOST_PATIENCE:] if back else state.setbacks


def _begun_s(policy: ScalingPolicy, window: LoadWindow, state: ScalingState, now: float) -> float:
    """Seconds for which replicas that are wanted and not ready have been starting, added up: the newest changes are
    theirs. Each for a cold start at most, since one that takes longer serves no more when another one is ready."""
    left, begun_s = state.wanted - (window.last.serving if window.last else 0), 0.0
    for change in reversed(state.changes):
        number = min(left, change.after - change.before)
        if number > 0:
            left, begun_s = left - number, begun_s + number * min(now - change.at, policy.cold_start_s)
    return begun_s


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
    if now - state.since >= STEADY_WINDOWS * policy.down_window_s and state.steady.largest is not None:
        level = min(level, state.steady.largest)
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
    return last._replace(typical=window.known.capacity)


def _silent(window: LoadWindow) -> bool:
    """Whether some replica or gateway does not answer."""
    return window.last is None or bool(window.last.missing or window.last.lost)


def _remembered(
    state: ScalingState, kept: Demand, lower: Demand, policy: ScalingPolicy, window: LoadWindow, now: float
) -> ScalingState:
    """State with the present level, and without what is too old to matter."""
    if state.wanted and window.last is not None and not window.last.serving:
        state = state._replace(unserved_at=now)
    levels = state.levels.since(now - policy.down_window_s)
    steady = state.steady.since(now - STEADY_WINDOWS * policy.down_window_s)
    # Above the bound all levels are alike, which bounds how many there are.
    if lower.known or kept.known:
        levels = levels.extended(now, min(max(lower.replicas, kept.replicas), policy.max_replicas))
    if kept.known:
        steady = steady.extended(now, min(kept.replicas, policy.max_replicas))
    return state._replace(levels=levels, steady=steady, changes=_kept(state.changes, policy, now))


def _kept(changes: tuple[ReplicaChange, ...], policy: ScalingPolicy, now: float) -> tuple[ReplicaChange, ...]:
    """The changes that still matter: of those older than MOST_KEPT_S the last decrease alone, for as long as the window
    is, so that a day of changes is not kept where bounds move with every tick."""
    window_s, brief_s = policy.down_window_s, min(policy.down_window_s, MOST_KEPT_S)
    recent = now - max(policy.up_period_s, policy.down_period_s, brief_s, policy.cold_start_s)
    kept = tuple(c for c in changes if c.at > recent)
    older = [c for c in changes if now - window_s < c.at <= recent and c.after < c.before]
    return (*older[-1:], *kept)


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
