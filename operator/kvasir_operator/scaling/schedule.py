"""Bounds by time of day: which of spec.autoscaling.schedules is in force. Called by `policy.py`."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct

from kvasir_api.autoscaling import Autoscaling, ScalingSchedule

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class ReplicaBound(Struct, frozen=True, kw_only=True):
    """replicas: the bound. field: the path of the field that sets it."""

    replicas: int
    field: str


def bounds(spec: Autoscaling, wall: float) -> tuple[ReplicaBound, ReplicaBound]:
    """Least and most replicas at a time. wall: epoch seconds.

    Of schedules that overlap the largest minimum counts and the largest maximum; a schedule without one of them leaves
    that of the spec. A minimum above the maximum lifts the maximum.
    """
    now = [(f"schedules[{i}]", s) for i, s in enumerate(spec.schedules) if in_force(s, wall)] if spec.schedules else ()
    least = _largest([(s.min_replicas, path) for path, s in now], "minReplicas", spec.min_replicas)
    most = _largest([(s.max_replicas, path) for path, s in now], "maxReplicas", spec.max_replicas)
    return least, most if most.replicas >= least.replicas else least


def _largest(scheduled: Iterable[tuple[int | None, str]], field: str, otherwise: int) -> ReplicaBound:
    """Of the schedules that set the field, each with its path; that of the spec where none does."""
    found = [(count, path) for count, path in scheduled if count is not None]
    if not found:
        return ReplicaBound(replicas=otherwise, field=f"spec.autoscaling.{field}")
    count, path = max(found)
    return ReplicaBound(replicas=count, field=f"spec.autoscaling.{path}.{field}")


def in_force(schedule: ScalingSchedule, wall: float) -> bool:
    """Whether a time lies in a schedule, which may cross midnight: it belongs to the day on which it begins.

    A local time that the clock skips begins when the clock is past it; one that comes twice begins at its first coming.
    """
    if schedule.zone is None:
        return False  # the spec is refused for it
    local = datetime.fromtimestamp(wall, UTC).astimezone(schedule.zone)
    hour, minute = map(int, schedule.start.split(":"))
    for back in (0, 1):
        day = local.date() - timedelta(days=back)
        begin = datetime(day.year, day.month, day.day, hour, minute, tzinfo=local.tzinfo)
        since_s = wall - begin.timestamp()
        if DAYS[day.weekday()] in (schedule.days or DAYS) and 0 <= since_s < schedule.duration_minutes * 60:
            return True
    return False
