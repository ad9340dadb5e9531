"""Bounds by time of day: which of spec.autoscaling.schedules is in force. Called by `policy.py`."""

from datetime import UTC, datetime, timedelta
from typing import Final

from kvasir_api.autoscaling import Autoscaling, ScalingSchedule

DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def bounds(spec: Autoscaling, wall: float) -> tuple[int, int]:
    """Least and most replicas at a time. wall: epoch seconds.

    Of schedules that overlap the largest minimum counts and the largest maximum; a schedule without one of them leaves
    that of the spec. A minimum above the maximum lifts the maximum.
    """
    now = [s for s in spec.schedules if in_force(s, wall)]
    least = max((s.min_replicas for s in now if s.min_replicas is not None), default=spec.min_replicas)
    most = max((s.max_replicas for s in now if s.max_replicas is not None), default=spec.max_replicas)
    return least, max(least, most)


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
