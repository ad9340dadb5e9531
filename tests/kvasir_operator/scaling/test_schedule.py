"""Bounds by time of day: midnight, days, time zones, changed clocks."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from kvasir_api.autoscaling import Autoscaling, ScalingSchedule
from kvasir_operator.scaling.schedule import bounds, in_force


def wall(text, zone="Etc/UTC"):
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


OFFICE = ScalingSchedule(
    start="08:00", duration_minutes=600, days=["Mon", "Tue"], time_zone="Europe/Berlin", min_replicas=3
)
NIGHT = ScalingSchedule(start="22:00", duration_minutes=480, days=["Fri"], max_replicas=2)


@pytest.mark.parametrize(
    ("schedule", "at", "zone", "expected"),
    [
        (OFFICE, "2026-11-23T08:00", "Europe/Berlin", True),  # a Monday
        (OFFICE, "2026-11-23T07:59", "Europe/Berlin", False),
        (OFFICE, "2026-11-23T07:00", "Etc/UTC", True),
        (OFFICE, "2026-11-23T17:59", "Europe/Berlin", True),
        (OFFICE, "2026-11-23T18:00", "Europe/Berlin", False),
        (OFFICE, "2026-11-25T08:00", "Europe/Berlin", False),  # a Wednesday
        (OFFICE, "2026-07-06T06:00", "Etc/UTC", True),  # in summer Berlin is two hours ahead
        (NIGHT, "2026-11-27T23:00", "Etc/UTC", True),
        (NIGHT, "2026-11-28T05:59", "Etc/UTC", True),  # Saturday morning belongs to Friday's night
        (NIGHT, "2026-11-28T06:00", "Etc/UTC", False),
        (NIGHT, "2026-11-28T22:30", "Etc/UTC", False),
        (
            ScalingSchedule(start="00:00", duration_minutes=1440, time_zone="Mars/Olympus"),
            "2026-11-28T13:00",
            "Etc/UTC",
            False,
        ),
        (ScalingSchedule(start="00:00", duration_minutes=1440), "2026-11-28T13:00", "Etc/UTC", True),
    ],
)
def test_when_a_schedule_is_in_force(schedule, at, zone, expected):
    assert in_force(schedule, wall(at, zone)) is expected


def test_the_hour_that_the_clock_skips_is_not_waited_for_another_day():
    early = ScalingSchedule(start="02:30", duration_minutes=60, time_zone="Europe/Berlin")
    assert in_force(early, wall("2026-03-29T01:45"))  # 03:45 local; 02:30 did not come that day


def test_the_largest_bounds_count_and_a_minimum_lifts_the_maximum():
    least, most = "spec.autoscaling.minReplicas", "spec.autoscaling.maxReplicas"
    office, night = "spec.autoscaling.schedules[0].minReplicas", "spec.autoscaling.schedules[1].maxReplicas"
    spec = Autoscaling(min_replicas=1, max_replicas=4, schedules=[OFFICE, NIGHT])
    assert named(spec, wall("2026-11-23T09:00", "Europe/Berlin")) == [(3, office), (4, most)]
    assert named(spec, wall("2026-11-27T23:00")) == [(1, least), (2, night)]
    assert named(spec, wall("2026-11-26T12:00")) == [(1, least), (4, most)]
    lifted = Autoscaling(max_replicas=2, schedules=[OFFICE])
    assert named(lifted, wall("2026-11-23T09:00", "Europe/Berlin")) == [(3, office), (3, office)]


def named(spec, at):
    return [(bound.replicas, bound.field) for bound in bounds(spec, at)]


@pytest.mark.parametrize(
    ("at", "expected"),
    # Clocks go forward at 01:00 UTC on 29 March and back at 01:00 UTC on 25 October.
    [("2026-03-29T01:59", True), ("2026-03-29T02:01", False), ("2026-10-25T01:59", True), ("2026-10-25T02:01", False)],
)
def test_a_duration_is_elapsed_time_when_clocks_change(at, expected):
    hours = {"2026-03": ("01:00", 120), "2026-10": ("01:00", 180)}[at[:7]]
    night = ScalingSchedule(start=hours[0], duration_minutes=hours[1], time_zone="Europe/Berlin")
    assert in_force(night, wall(at)) is expected
