"""How the operator chooses the number of replicas: the part `spec.autoscaling` of an InferenceService. Used by `service`
alone to make the resource, and by the operator to read it.
"""

from typing import Final, Literal
from zoneinfo import ZoneInfo

from kvasir_api.crd_types import CrdObject, validation_rules
from kvasir_api.option_fields import option

MAX_REPLICAS: Final = 1000


class ScaleUp(CrdObject):
    """How fast replicas may be added."""

    percent: int = option(
        100, "At most this share of the present replicas is added in one period.", unit="percent", ge=1, le=1000
    )
    pods: int = option(
        4, "At least this many replicas may be added in one period.", unit="replicas", ge=1, le=MAX_REPLICAS
    )
    period_seconds: int = option(60, "Length of the period.", unit="seconds", ge=1, le=3600)


class ScaleDown(CrdObject):
    """How fast replicas may be removed."""

    window_seconds: int = option(
        300,
        "The largest demand of this long counts, so that a short lull removes nothing.",
        unit="seconds",
        ge=0,
        le=86_400,
    )
    percent: int = option(
        25,
        "At most this share of the present replicas is removed in one period, but always one.",
        unit="percent",
        ge=1,
        le=100,
    )
    period_seconds: int = option(60, "Length of the period.", unit="seconds", ge=1, le=3600)


class ScalingSchedule(CrdObject):
    """Other bounds at some times of the week."""

    start: str = option(
        ..., "When it begins, local time HH:MM.", pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$", max_length=5
    )
    duration_minutes: int = option(..., "How long it lasts; it may cross midnight.", unit="minutes", ge=1, le=1440)
    days: list[Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]] = option(
        [], "Days on which it begins; none means every day.", max_length=7, list_type="set"
    )
    time_zone: str = option(
        "Etc/UTC", "Time zone of the tz database.", pattern=r"^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$", max_length=64
    )
    min_replicas: int | None = option(
        None, "Takes the place of autoscaling.minReplicas.", unit="replicas", ge=0, le=MAX_REPLICAS
    )
    max_replicas: int | None = option(
        None, "Takes the place of autoscaling.maxReplicas.", unit="replicas", ge=1, le=MAX_REPLICAS
    )

    @property
    def zone(self) -> ZoneInfo | None:
        """The time zone; None where the tz database of this installation does not have it."""
        try:
            return ZoneInfo(self.time_zone)
        except (KeyError, OSError, ValueError):
            return None


class Autoscaling(CrdObject):
    """Bounds and targets of the built-in autoscaler; without this block spec.replicas rules."""

    model_config = validation_rules(
        (
            "self.?minReplicas.orValue(1) <= self.?maxReplicas.orValue(4)",
            "autoscaling.minReplicas must not exceed autoscaling.maxReplicas",
            ".minReplicas",
        ),
        (
            "self.?kvReleasePercent.orValue(70) < self.?kvTargetPercent.orValue(85)",
            "autoscaling.kvReleasePercent must be below autoscaling.kvTargetPercent: between them nothing is scaled",
            ".kvReleasePercent",
        ),
    )

    mode: Literal["Active", "Advisory", "Paused", "External"] = option(
        "Active",
        "Active sets the number of replicas. Advisory only reports it, and spec.replicas counts. Paused leaves it where it is. External leaves spec.replicas to another autoscaler, such as an HPA.",
    )
    min_replicas: int = option(
        1,
        "Never fewer replicas than this. With 0 the last replica leaves after idleSeconds, and the next request starts one.",
        unit="replicas",
        ge=0,
        le=MAX_REPLICAS,
    )
    max_replicas: int = option(4, "Never more replicas than this.", unit="replicas", ge=1, le=MAX_REPLICAS)
    idle_seconds: int = option(
        300,
        "With minReplicas 0: all replicas leave after so long without a request, whatever scaleDown says.",
        unit="seconds",
        ge=1,
        le=86_400,
    )
    kv_target_percent: int = option(
        85, "Replicas are added when pinned KV cache would exceed this share.", unit="percent", ge=10, le=95
    )
    kv_release_percent: int = option(
        70, "A replica is removed only if the others stay below this share.", unit="percent", ge=5, le=90
    )
    backlog_horizon_seconds: int = option(
        0,
        "What waits shall be done within this time; 0 takes the larger of 60 and half a cold start.",
        unit="seconds",
        ge=0,
        le=3600,
    )
    ttft_milliseconds: int = option(
        0, "Objective for the time to the first token; 0 sets none.", unit="milliseconds", ge=0, le=600_000
    )
    itl_milliseconds: int = option(
        0, "Objective for the time between two tokens; 0 sets none.", unit="milliseconds", ge=0, le=60_000
    )
    schedules: list[ScalingSchedule] = option(
        [], "Other bounds at some times; where several are in force, the largest count.", max_length=8
    )
    scale_up: ScaleUp = option(ScaleUp(), "How fast replicas may be added.")
    scale_down: ScaleDown = option(ScaleDown(), "How fast replicas may be removed.")
