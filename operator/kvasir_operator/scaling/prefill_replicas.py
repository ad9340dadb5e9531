"""How many replicas compute prompts for the others, by the prompts that come and wait: `spec.roles.prefill`.

Up at once, down to the largest need of the window of `scaleDown`, so that a lull takes no role away. What running
answers need of the KV cache goes first: at once, and what they leave is given back when they have left it for as long,
so that answers at the edge of a cache move no role to and fro. Called by the scaler behind each tick; `rollout/roles`
decides who has it.
"""

from math import ceil
from typing import Final, NamedTuple

from kvasir_api.roles import PrefillRole
from kvasir_operator.scaling.demand import EPSILON, PREFILL_FRACTION
from kvasir_operator.scaling.level_window import LevelWindow
from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.window import LoadWindow
from kvasir_operator.scaling.workload import workload

QUEUE_S: Final = 10.0
"""Within which prompts that wait are to be computed, beside those that come."""
FIELD: Final = "spec.roles.prefill"


class PrefillDecision(NamedTuple):
    """replicas: that are to have the role, as far as there are so many. why: for people; it changes with the number
    alone. levels: needs of the window. held: replicas whose caches running answers filled in it."""

    replicas: int
    why: str
    levels: LevelWindow = LevelWindow()
    held: LevelWindow = LevelWindow()


NOTHING: Final = PrefillDecision(0, "")
"""Of a service for which nothing was decided before."""


def kept(role: PrefillRole, present: int) -> int:
    """How many have the role while nothing else is known: those that do, within the bounds."""
    return max(role.min_replicas, min(present, role.max_replicas))


def prefill_replicas(
    role: PrefillRole, window: LoadWindow, before: PrefillDecision, policy: ScalingPolicy, *, now: float
) -> PrefillDecision:
    """The next decision. before: the last one, NOTHING for none: then the replicas that have the role keep it. now:
    seconds of a steady clock."""
    last, load = window.last, workload(window, now=now)
    rate = last.typical.prefill_tokens_per_s if last is not None else 0.0
    if last is None or not rate:
        return PrefillDecision(
            kept(role, last.prefill if last is not None else 0),
            "no prompt rate is measured",
            before.levels,
            before.held,
        )
    tokens_per_s = load.prompt_rate + load.waiting_tokens / QUEUE_S
    need = ceil(tokens_per_s / (PREFILL_FRACTION * rate) - EPSILON)
    levels, since = before.levels, now - policy.down_window_s
    if not levels.entries and last.prefill > role.min_replicas:
        levels = LevelWindow().extended(now, last.prefill)
    levels = levels.since(since).extended(now, need)
    largest = levels.largest or 0
    count, why = largest, f"prompts that come and wait require {largest}"
    tokens = policy.target_fraction * last.typical.kv_tokens
    held = before.held.since(since).extended(now, ceil(load.pinned_tokens / tokens - EPSILON) if tokens else 0)
    free = len(last.supply) - (held.largest or 0) if tokens else 0
    if count > max(free, role.min_replicas):
        count, why = free, f"{why}; the KV cache of running answers leaves {max(free, 0)}"
    if count < role.min_replicas:
        count, why = role.min_replicas, f"{why}; {FIELD}.minReplicas is {role.min_replicas}"
    elif count > role.max_replicas:
        count, why = role.max_replicas, f"{why}; {FIELD}.maxReplicas is {role.max_replicas}"
    return PrefillDecision(count, why, levels, held)
