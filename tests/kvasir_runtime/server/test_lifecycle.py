"""Phases, refusals and the bound of the queue, and what signals mean."""

import asyncio

import pytest

from fakes.clock import Now
from kvasir_api.state import MeasuredRates, RuntimeState, TtftForecast
from kvasir_runtime.client.open_sequences import TenantLoad
from kvasir_runtime.server import lifecycle as lifecycle_rules
from kvasir_runtime.server.admission import clamped_retry_s, has_place_by_share, queue_refusal, retry_after_s
from kvasir_runtime.server.lifecycle import STRAGGLER_S, EndSignals, Lifecycle


@pytest.fixture
def clock():
    return Now()


@pytest.fixture
def lifecycle(clock):
    return Lifecycle(clock)


def test_it_refuses_until_it_is_ready(lifecycle):
    refusal = lifecycle.refusal()
    assert (refusal.status, refusal.code, refusal.retry_after_s) == (503, "model_loading", 5.0)
    lifecycle.advance("loading", 0.4, 12.0)
    assert lifecycle.refusal().retry_after_s == 12.0
    assert "40%" in lifecycle.refusal().message
    assert not lifecycle.start_is_over
    lifecycle.advance("ready", 1.0)
    assert lifecycle.refusal() is None
    assert (lifecycle.ready, lifecycle.start_is_over, lifecycle.phase) == (True, True, "ready")


def test_a_requested_drain_takes_stragglers_and_can_be_reverted(lifecycle, clock):
    lifecycle.advance("ready")
    lifecycle.drain()
    assert (lifecycle.phase, lifecycle.ready, lifecycle.refusal()) == ("draining", False, None)
    clock.now += STRAGGLER_S
    assert lifecycle.refusal().code == "draining"
    lifecycle.drain()
    assert lifecycle.refusal() is not None, "asking again does not open it again"
    assert lifecycle.undrain()
    assert lifecycle.refusal() is None


def test_leaving_refuses_at_once_and_is_final(lifecycle):
    lifecycle.advance("ready")
    lifecycle.leave(stragglers=False)
    assert lifecycle.refusal().code == "draining"
    assert lifecycle.straggling_s() == 0
    assert not lifecycle.undrain()
    assert (lifecycle.phase, lifecycle.refusal().code) == ("draining", "draining")


def test_a_replica_that_is_told_to_end_takes_stragglers(lifecycle, clock):
    lifecycle.advance("ready")
    lifecycle.leave(stragglers=True)
    assert (lifecycle.phase, lifecycle.ready, lifecycle.refusal()) == ("draining", False, None)
    assert not lifecycle.undrain()
    assert lifecycle.straggling_s() == STRAGGLER_S
    clock.now += STRAGGLER_S
    assert (lifecycle.refusal().code, lifecycle.straggling_s()) == ("draining", 0)


def test_a_drain_that_went_before_counts(lifecycle, clock):
    lifecycle.advance("ready")
    assert lifecycle.straggling_s() == 0
    lifecycle.drain()
    clock.now += 3
    lifecycle.leave(stragglers=True)
    assert lifecycle.straggling_s() == STRAGGLER_S - 3
    clock.now += 2
    assert lifecycle.refusal().code == "draining"


def test_a_failed_engine_refuses(lifecycle):
    lifecycle.advance("ready")
    lifecycle.failed = True
    assert lifecycle.refusal().code == "engine_failed"
    assert not lifecycle.ready


@pytest.mark.parametrize(
    ("running", "waiting", "inflight", "refused"),
    [
        (0, 0, 14, False),  # an idle engine takes max_sequences and the queue at once
        (0, 0, 15, True),
        (4, 0, 14, False),
        (3, 5, 13, False),  # the cache is full with three: the rest waits
        (3, 5, 14, True),
    ],
)
def test_the_queue_is_bounded(running, waiting, inflight, refused):
    state = RuntimeState(running=running, waiting=waiting)
    found = queue_refusal(state, inflight=inflight, max_sequences=4, max_waiting=10)
    assert (found is not None) == refused
    if found is not None:
        assert (found.status, found.code) == (429, "overloaded")


@pytest.mark.parametrize(
    ("tenants", "weight", "num_new", "want"),
    [
        ({"a": (12, 1.0)}, 1.0, 1, True),  # half of twelve places
        ({"a": (12, 1.0)}, 1.0, 6, True),
        ({"a": (12, 1.0)}, 1.0, 7, False),
        ({"a": (7, 1.0), "b": (5, 1.0)}, 1.0, 1, True),
        ({"a": (7, 1.0), "b": (5, 1.0)}, 1.0, 2, False),
        ({"a": (7, 1.0), "b": (7, 3.0)}, 3.0, 2, True),
        ({"a": (7, 3.0), "b": (3, 1.0)}, 1.0, 1, False),
        ({"b": (12, 1.0)}, 1.0, 1, False),  # it is alone
        ({}, 1.0, 1, False),
    ],
)
def test_a_tenant_has_its_share_of_a_full_queue(tenants, weight, num_new, want):
    loads = {name: TenantLoad(*load) for name, load in tenants.items()}
    assert has_place_by_share(loads, "b", weight, num_new=num_new, places=12) == want


@pytest.mark.parametrize(
    ("remaining", "running", "step_s", "want"),
    [(0, 0, 0.0, 1.0), (8000, 8, 0.02, 5.0), (10**9, 1, 1.0, 60.0)],
)
def test_the_time_to_come_back_follows_the_work_left(remaining, running, step_s, want):
    state = RuntimeState(running=running, remaining_tokens=remaining, rates=MeasuredRates(decode_step_s=step_s))
    assert retry_after_s(state) == want


def test_seconds_are_bounded_by_the_engine_alone():
    """It knows what comes before a request; the snapshot has the seconds of one that comes behind everything."""
    state = RuntimeState(running=4, waiting=5, ttft=TtftForecast(queue_s=1e4, calibrated=True))
    assert queue_refusal(state, inflight=10, max_sequences=4, max_waiting=10, jitter=0.0) is None


def test_the_time_to_come_back_is_that_of_the_queue_once_it_is_known():
    state = RuntimeState(running=4, waiting=50, ttft=TtftForecast(queue_s=12.0, calibrated=True))
    refusals = [
        queue_refusal(state, inflight=99, max_sequences=4, max_waiting=10, jitter=jitter) for jitter in (0.0, 1.0)
    ]
    assert [refusal.retry_after_s for refusal in refusals] == [12.0, 15.0]


@pytest.mark.parametrize(
    ("late_s", "jitter", "want"), [(-2.0, 0.0, 1.0), (0.3, 1.0, 1.25), (8.0, 0.5, 9.0), (500.0, 1.0, 37.5)]
)
def test_another_try_is_advised_within_bounds(late_s, jitter, want):
    assert clamped_retry_s(late_s, jitter) == want


def test_retries_are_spread():
    state = RuntimeState(running=8, waiting=1, remaining_tokens=8000, rates=MeasuredRates(decode_step_s=0.02))
    times = [
        queue_refusal(state, inflight=99, max_sequences=8, max_waiting=1, jitter=jitter).retry_after_s
        for jitter in (0.0, 1.0)
    ]
    assert times == [3.75, 6.25]


def test_a_node_behind_the_first_has_started_and_serves_no_requests(lifecycle):
    lifecycle.advance("warming", 1.0, message="computing for node 0", computes=True)
    assert (lifecycle.start_is_over, lifecycle.ready, lifecycle.phase) == (True, False, "warming")
    assert lifecycle.refusal().code == "model_loading"


def test_the_first_signal_drains_and_the_second_stops(lifecycle):
    signals = EndSignals(lifecycle, 600.0)
    signals.take()
    assert (signals.leave.is_set(), signals.stop.is_set()) == (True, False)
    signals.take()
    assert signals.stop.is_set()


async def test_a_node_that_computes_for_node_0_outlives_its_drain(lifecycle):
    lifecycle.advance("warming", computes=True)
    signals = EndSignals(lifecycle, 600.0)
    signals.take()
    await asyncio.sleep(0)
    assert not signals.leave.is_set()
    signals.take()
    assert (signals.leave.is_set(), signals.stop.is_set()) == (True, False)


async def test_it_does_not_wait_for_ever(lifecycle, monkeypatch):
    monkeypatch.setattr(lifecycle_rules, "OUTLIVES_S", 0.0)
    lifecycle.advance("warming", computes=True)
    signals = EndSignals(lifecycle, 0.01)
    signals.take()
    await asyncio.wait_for(signals.leave.wait(), 30)
    assert not signals.stop.is_set()


def test_one_that_still_starts_ends_at_once(lifecycle):
    lifecycle.advance("starting")
    signals = EndSignals(lifecycle, 600.0)
    signals.take()
    assert signals.leave.is_set()
