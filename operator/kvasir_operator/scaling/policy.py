"""The autoscaler's numbers, resolved from a spec, what is known of cold starts, and the time of day."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

from kvasir_api.autoscaling import Autoscaling
from kvasir_operator.scaling.schedule import bounds

LEAST_HORIZON_S: Final = 60.0
MOST_COLD_START_S: Final = 600.0
"""A longer start is counted as so long: a horizon of hours would not see a queue at all."""


class ScalingPolicy(Struct, frozen=True, kw_only=True):
    """Fractions 0..1, times in seconds; see spec.autoscaling for what each means. idle_s counts with min_replicas
    0. min_field, max_field: paths of the fields that set the bounds. ttft_s, itl_s: 0 without objective. cold_start_s:
    the ninth decile of first starts, 0 before one."""

    min_replicas: int = 1
    max_replicas: int = 4
    idle_s: float = 300.0
    min_field: str = "spec.autoscaling.minReplicas"
    max_field: str = "spec.autoscaling.maxReplicas"
    target_fraction: float = 0.85
    release_fraction: float = 0.70
    horizon_s: float = LEAST_HORIZON_S
    ttft_s: float = 0.0
    itl_s: float = 0.0
    cold_start_s: float = 0.0
    up_fraction: float = 1.0
    up_pods: int = 4
    up_period_s: float = 60.0
    down_window_s: float = 300.0
    down_fraction: float = 0.25
    down_period_s: float = 60.0
    paused: bool = False


def policy(spec: Autoscaling, cold_starts_s: Iterable[float] = (), *, wall: float = 0.0) -> ScalingPolicy:
    """The policy of a spec. cold_starts_s: first starts, from creation to ready, which two clocks may show as negative.
    wall: epoch seconds, for schedules."""
    cold_start_s = min(MOST_COLD_START_S, max(0.0, _p90(sorted(cold_starts_s))))
    least, most = bounds(spec, wall)
    return ScalingPolicy(
        min_replicas=least.replicas,
        max_replicas=most.replicas,
        min_field=least.field,
        max_field=most.field,
        idle_s=float(spec.idle_seconds),
        target_fraction=spec.kv_target_percent / 100,
        release_fraction=spec.kv_release_percent / 100,
        horizon_s=float(spec.backlog_horizon_seconds) or max(LEAST_HORIZON_S, cold_start_s / 2),
        ttft_s=spec.ttft_milliseconds / 1000,
        itl_s=spec.itl_milliseconds / 1000,
        cold_start_s=cold_start_s,
        up_fraction=spec.scale_up.percent / 100,
        up_pods=spec.scale_up.pods,
        up_period_s=float(spec.scale_up.period_seconds),
        down_window_s=float(spec.scale_down.window_seconds),
        down_fraction=spec.scale_down.percent / 100,
        down_period_s=float(spec.scale_down.period_seconds),
        paused=spec.mode == "Paused",
    )


def _p90(rising: list[float]) -> float:
    """Of few values the one that is not the largest, so that a single odd start does not set the horizon."""
    return rising[int(0.9 * (len(rising) - 1))] if rising else 0.0
