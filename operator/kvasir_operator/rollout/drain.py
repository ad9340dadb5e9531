"""Which pods leave a workload, and when its count may be lowered: drained first, then marked, then counted down.

The order follows the fixed order of a ReplicaSet (pods without a node, then pending ones, then those not ready). Within
that the operator orders them by pod-deletion-cost: failed ones, those whose node leaves, those on spot nodes, then the
one that costs least. Old revisions are workloads of their own, whose counts are lowered first. A count is lowered only
for pods whose mark a watch has brought back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvasir_api.state import RuntimeState
from kvasir_operator.observed.replica import Replica
from kvasir_operator.stages import PodAction

SETTLE_S: Final = 3.0
"""An idle pod waits this long after the drain began, since gateways learn of it with their next reading."""
OVERDUE_S: Final = 30.0
"""So long after its drain timeout a terminating pod is cut short; its own grace period began only when it was
deleted."""

GUESSED_STEP_S: Final = 0.05
GUESSED_PREFILL: Final = 1000.0
"""Speed of a replica that has measured none: seconds of a step, tokens per second of a prompt."""
MOST_COUNTED: Final = 2.0**53
"""Tokens or requests: what a pod says may be an int of any length, which is no float."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainPlan:
    """The count that may be applied now, and the actions that bring it closer to the one wanted."""

    count: int
    actions: tuple[PodAction, ...] = ()


def drain_plan(replicas: Sequence[Replica], *, count: int, target: int, timeout_s: float) -> DrainPlan:
    """Bring a workload from count to target.

    replicas: all its pods. count: as asked of the workload now. timeout_s: how long a pod may drain.
    """
    live = sorted((r for r in replicas if r.live), key=_order)
    victims = live[: max(0, len(live) - target)]
    actions = [action for r in victims if (action := _next_action(r, timeout_s)) is not None]
    actions += [
        PodAction(verb="release", replica=r, why="its replica is wanted again")
        for r in live[len(victims) :]
        if r.drain_since is not None or r.drained or (r.reading is not None and r.reading.phase == "draining")
    ]
    actions += [
        PodAction(verb="cut", replica=r, why=f"it did not end within its drain timeout of {timeout_s:g} s")
        for r in replicas
        if r.terminating and r.drain_since is not None and r.draining_s > timeout_s + OVERDUE_S
    ]
    marked = sum(r.drained for r in victims)
    return DrainPlan(count=max(target, min(count, len(live) - marked)), actions=tuple(actions))


def _order(r: Replica) -> tuple[bool, bool, int, bool, bool, int, bool, bool, float, int, float, str]:
    """The first leaves first; see the module's docstring. Of replicas of several pods the one that lacks most of them;
    among ready pods of equal nodes the one that costs least."""
    mark = 0 if r.drained else 1 if r.drain_since is not None else 2
    requests = r.reading.running + r.reading.waiting if r.reading else 0
    return (
        r.assigned,
        not r.pending,
        mark,
        r.phase != "failed",
        r.phase == "ready",
        sum(node.assigned for node in r.nodes),
        not r.node_leaves,
        not r.spot,
        cost_s(r.reading),
        requests,
        -r.created,
        r.name,
    )


def cost_s(reading: RuntimeState | None) -> float:
    """Seconds that a replica's leaving costs: it holds its node until its answers are whole, and what its cache is
    worth must be computed again elsewhere. 0 for one that is silent.

    All rows of a batch go on at once, so the work left is divided by them. Rates that were not measured are guessed.
    """
    if reading is None:
        return 0.0
    step_s = reading.rates.decode_step_s or GUESSED_STEP_S
    prefill = reading.rates.prefill_tokens_per_s or GUESSED_PREFILL
    # An older runtime reports only the bounds of its requests.
    tokens = min(reading.expected_tokens or reading.remaining_tokens, MOST_COUNTED)
    prompts_s = min(reading.waiting_uncached_tokens + reading.reused_tokens, MOST_COUNTED) / prefill
    return tokens * step_s / min(max(1, reading.running), MOST_COUNTED) + prompts_s


def _next_action(r: Replica, timeout_s: float) -> PodAction | None:
    if r.drained:
        return None
    serving = r.phase == "ready" or (r.reading is not None and r.reading.phase in ("ready", "draining"))
    if not serving and (r.reading is not None or r.drain_since is None):
        return PodAction(verb="finish", replica=r, why=f"it serves nothing ({r.phase})")
    if r.drain_since is None:
        return PodAction(verb="drain", replica=r, why="fewer replicas are wanted")
    waited = r.draining_s
    if waited >= timeout_s:
        return PodAction(verb="finish", replica=r, why=f"its drain timeout of {timeout_s:g} s passed")
    if r.reading is None:
        return None
    if r.reading.phase != "draining":
        return PodAction(verb="ask", replica=r, why="its runtime does not drain yet")
    if r.idle and waited >= min(SETTLE_S, timeout_s):
        return PodAction(verb="finish", replica=r, why=f"it finished its requests after {waited:.0f} s")
    return None
