"""The autoscaler's numbers, resolved from a spec and what is known of cold starts."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import quantiles
from typing import Final

from kvasir_api.service import Autoscaling

LEAST_HORIZON_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPolicy:
    """Fractions 0..1, times in seconds; see spec.autoscaling for what each means."""

    min_replicas: int = 1
    max_replicas: int = 4
    target_fraction: float = 0.85
    release_fraction: float = 0.70
    horizon_s: float = LEAST_HORIZON_S
    up_fraction: float = 1.0
    up_pods: int = 4
    up_period_s: float = 60.0
    down_window_s: float = 300.0
    down_fraction: float = 0.25
    down_period_s: float = 60.0


def policy(spec: Autoscaling, cold_starts_s: Iterable[float] = ()) -> ScalingPolicy:
    """The policy of a spec. cold_starts_s: from creation to ready, of the replicas that are ready now."""
    horizon = float(spec.backlog_horizon_seconds) or max(LEAST_HORIZON_S, _p90(list(cold_starts_s)) / 2)
    return ScalingPolicy(
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        target_fraction=spec.kv_target_percent / 100,
        release_fraction=spec.kv_release_percent / 100,
        horizon_s=horizon,
        up_fraction=spec.scale_up.percent / 100,
        up_pods=spec.scale_up.pods,
        up_period_s=float(spec.scale_up.period_seconds),
        down_window_s=float(spec.scale_down.window_seconds),
        down_fraction=spec.scale_down.percent / 100,
        down_period_s=float(spec.scale_down.period_seconds),
    )


def _p90(values: list[float]) -> float:
    if len(values) < 2:
        return values[0] if values else 0.0
    return quantiles(values, n=10, method="inclusive")[-1]
