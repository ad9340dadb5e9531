"""The autoscaler's numbers from a spec and from cold starts."""

import pytest

from kvasir_api.autoscaling import Autoscaling, ScaleDown
from kvasir_operator.scaling.policy import policy


@pytest.mark.parametrize(
    ("given", "cold_starts", "horizon"),
    [
        (0, (), 60.0),
        (0, (400.0,), 200.0),
        (30, (400.0,), 30.0),
        (0, (10.0,), 60.0),
        (0, (7200.0, 40.0), 60.0),  # one that was unready for hours meanwhile
        (0, (43_200.0,), 300.0),
        (0, (*(200.0,) * 18, 600.0, 9_000.0), 100.0),
    ],
)
def test_backlog_horizon_follows_cold_starts(given, cold_starts, horizon):
    assert policy(Autoscaling(backlog_horizon_seconds=given), cold_starts).horizon_s == horizon


def test_a_start_that_two_clocks_show_as_negative_takes_no_time():
    """The node writes when a pod was ready, the API server when it was created."""
    assert policy(Autoscaling(), (-4.0, -2.0)).cold_start_s == 0.0


def test_policy_takes_percent_and_seconds_from_the_spec():
    spec = Autoscaling(
        min_replicas=2,
        kv_target_percent=80,
        ttft_milliseconds=1500,
        itl_milliseconds=40,
        scale_down=ScaleDown(window_seconds=60, percent=50),
    )
    rules = policy(spec)
    assert (rules.min_replicas, rules.target_fraction, rules.down_window_s, rules.down_fraction) == (2, 0.8, 60.0, 0.5)
    assert (rules.ttft_s, rules.itl_s, rules.paused) == (1.5, 0.04, False)


def test_a_paused_spec_pauses():
    assert policy(Autoscaling(mode="Paused")).paused
