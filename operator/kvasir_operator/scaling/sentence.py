"""What people read of a decision: why there are so many replicas, and the numbers behind it. Called by `decide.py`."""

from typing import Final

from kvasir_operator.scaling.demand import SIGNALS, Demand, Signal
from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.workload import Workload

NAMES: Final[dict[Signal, str]] = {
    "kv": "KV cache",
    "slots": "sequence slots",
    "prefill": "prefill rate",
    "itl": "time between tokens",
    "ttft": "time to first token",
    "backlog": "backlog",
}
UNREACHABLE: Final = (
    "no number of replicas reaches spec.autoscaling.itlMilliseconds, so that none is added for it alone"
)
LEAST_SAID: Final = 0.05
UNKNOWN: Final = "no replica has reported its capacity yet"


def replicas(number: int) -> str:
    """A number of replicas in words."""
    return "1 replica" if number == 1 else f"{number} replicas"


def message(number: int, asked: Demand, limited_by: str, policy: ScalingPolicy) -> str:
    """Names what determines the count, beside a limit what the load requires, and an objective that is out of reach."""
    name = NAMES[asked.signal]
    if limited_by == "idle":
        return f"{replicas(number)}: {_limit(limited_by, up=False, policy=policy)}"
    unreachable = f"; {UNREACHABLE}" if asked.itl_unreachable else ""
    if limited_by == "":
        return f"{replicas(number)}: {name} determines the count{unreachable}"
    required = f"{name} requires {asked.replicas}" if asked.known else UNKNOWN
    limit = _limit(limited_by, up=asked.replicas > number, policy=policy)
    return f"{replicas(number)}: {limit}; {required}{unreachable}"


def _limit(limited_by: str, *, up: bool, policy: ScalingPolicy) -> str:
    side = "scaleUp" if up else "scaleDown"
    return {
        "floor": f"{policy.min_field} determines the count",
        "ceiling": f"{policy.max_field} limits the count",
        "rate": f"spec.autoscaling.{side} limits how fast the count changes",
        "window": f"the largest demand of the last {policy.down_window_s:.0f} s determines the count",
        "readings": "the count stays while readings are missing",
        "capacity": "the count stays while a replica finds no node",
        "paused": "spec.autoscaling.mode is Paused",
        "activity": "a request came within spec.autoscaling.idleSeconds",
        "reserve": "a start takes longer than spec.autoscaling.ttftMilliseconds, so that one stays",
        "idle": "no request came within spec.autoscaling.idleSeconds",
    }[limited_by]


def reason(asked: Demand, limited_by: str, policy: ScalingPolicy) -> str:
    """What needs how many replicas, for an event: 'KV cache needs 2.2 replicas at 85 %'."""
    if limited_by in ("idle", "activity", "reserve"):
        return _limit(limited_by, up=False, policy=policy)
    if not asked.known:
        needs = UNKNOWN
    else:
        edge = f" at {asked.edge:.0%}" if asked.signal in ("kv", "slots") else ""
        amount = "under 0.1" if 0 < asked.level < LEAST_SAID else f"{asked.level:.1f}"
        needs = f"{NAMES[asked.signal]} needs {amount} replicas{edge.replace('%', ' %')}"
    lost = f"; {replicas(asked.lost)} did not answer for minutes" if asked.lost else ""
    bound = {
        "floor": f"; {policy.min_field} determines the count",
        "ceiling": f"; {policy.max_field} limits the count",
        "rate": "; the rate of change is limited",
    }
    lost += "; sequences lose their KV cache to others" if asked.load.exhausted else ""
    lost += "; requests wait all the time" if asked.load.stuck else ""
    lost += "; replicas refuse requests" if asked.load.refused_per_s else ""
    unreachable = f"; {UNREACHABLE}" if asked.itl_unreachable else ""
    return f"{needs}{lost}{bound.get(limited_by, '')}{unreachable}"


def _refused(load: Workload) -> str:
    return f", of which {load.refused_per_s:.2f} are refused" if load.refused_per_s else ""


def _growth(load: Workload) -> str:
    return f", {60 * load.growth:.2f} more each minute" if load.growth else ""


def arithmetic(asked: Demand) -> str:
    """Every signal with its replicas, and the load and capacity that they are computed from."""
    if not asked.known:
        return UNKNOWN
    load, each = asked.load, asked.each
    levels = ", ".join(f"{signal} {asked.levels[signal]:.2f}" for signal in SIGNALS if signal in asked.levels)
    parts = [
        f"{load.running:,.0f} running with {load.pinned_tokens:,.0f} pinned tokens",
        f"{load.waiting:,.0f} waiting with {load.waiting_tokens:,.0f} tokens",
        f"{load.arrivals_per_s:.2f} requests/s{_refused(load)}{_growth(load)}",
        f"one has {load.prompt_tokens:,.0f} prompt tokens to compute and {load.output_tokens:,.0f} output tokens",
        f"it runs {load.seconds:.1f} s and pins {load.kv_tokens:,.0f} tokens",
        f"a replica has {each.kv_tokens:,.0f} tokens and {each.slots:,.0f} slots",
        f"and computes {each.prefill_tokens_per_s:,.0f} prompt tokens/s",
    ]
    if load.step.mean_s:
        base_ms, slope_ms = 1000 * load.step.base_s, 1000 * load.step.slope_s
        parts.append(f"a step takes {base_ms:.1f} ms and {slope_ms:.2f} ms for each sequence")
    return f"{levels} replicas; {'; '.join(parts)}"
