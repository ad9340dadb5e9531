"""Windows of equal samples, for tests of what the autoscaler makes of them."""

from typing import Any

from kvasir_operator.scaling.capacity import ReplicaCapacity
from kvasir_operator.scaling.decide import ScalingDecision, ScalingState, decide
from kvasir_operator.scaling.load_counts import LoadCounts
from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.window import LoadGauges, LoadSample, LoadWindow

NOW = 1000.0
GAUGES = set(LoadGauges._fields)
COUNTS = set(LoadCounts._fields)


def steady(
    *,
    seconds: int = 600,
    replicas: int = 1,
    kv: float = 1000.0,
    slots: float = 0.0,
    rate: float = 1000.0,
    **fields: Any,
) -> LoadWindow:
    """A sample every two seconds up to NOW. Of each replica: KV tokens, slots, prompt tokens/s. fields: of the sample,
    of its gauges, or counted within each two seconds; what runs and is pinned is integrated over time."""
    each = ReplicaCapacity(kv_tokens=kv, slots=slots, prefill_tokens_per_s=rate)
    gauges = LoadGauges(**{name: value for name, value in fields.items() if name in GAUGES})
    counts = {name: value for name, value in fields.items() if name in COUNTS}
    spans = {"span_s": 2.0, "running_s": 2 * gauges.running, "pinned_s": 2 * gauges.pinned_tokens}
    rest = {name: value for name, value in fields.items() if name not in GAUGES | COUNTS}
    samples = [
        LoadSample(
            at=NOW - seconds + 2 * i,
            serving=replicas,
            supply=(each,) * replicas,
            typical=each,
            gauges=gauges,
            counts=LoadCounts(**{**spans, **counts}),
            **rest,
        )
        for i in range(seconds // 2 + 1)
    ]
    return LoadWindow(samples=tuple(samples))


def decided() -> ScalingDecision:
    """A decision under a steady load, of a service with 2 replicas, 1 to 8 of them allowed."""
    policy = ScalingPolicy(min_replicas=1, max_replicas=8)
    state = ScalingState(wanted=2, since=0.0)
    return decide(policy, steady(pinned_tokens=2_000), unplaced_s=0.0, state=state, now=NOW)[0]
