"""Replicas that a load needs where replicas are not alike."""

import pytest

from kvasir_api.state import KvState, MeasuredRates, RuntimeState
from kvasir_api.status import Capacity
from kvasir_operator.scaling import capacity as capacities
from kvasir_operator.scaling.capacity import UNKNOWN, ReplicaCapacity, capacity_of, of_next, replicas

SMALL, LARGE = ReplicaCapacity(kv_tokens=100.0), ReplicaCapacity(kv_tokens=400.0)


@pytest.mark.parametrize(
    ("load", "supply", "following", "expected"),
    [
        (0, [SMALL], SMALL, 0.0),
        (50, [SMALL], SMALL, 0.5),
        (250, [SMALL], SMALL, 2.5),
        (250, [SMALL, SMALL, SMALL], SMALL, 2.5),
        (300, [SMALL, LARGE], LARGE, 1.5),  # the smaller one may be the one that stays
        (700, [SMALL, LARGE], LARGE, 2.5),
        (700, [SMALL, LARGE], SMALL, 4.0),
        (700, [], ReplicaCapacity(), 0.0),
    ],
)
def test_the_smallest_first_and_then_such_as_the_next(load, supply, following, expected):
    assert replicas(load, supply, following, lambda c: c.kv_tokens) == pytest.approx(expected)


def test_the_next_replica_is_like_those_of_the_current_revision():
    assert of_next([SMALL, SMALL, LARGE], [False, False, True], UNKNOWN) == LARGE
    assert of_next([SMALL, SMALL, LARGE], [False, False, False], UNKNOWN) == SMALL
    assert of_next([], [], LARGE) == UNKNOWN
    # unlike replicas say nothing of one of another class, of which there is a forecast
    assert of_next([SMALL, SMALL], [False, False], LARGE) == LARGE
    assert of_next([SMALL, LARGE], [True, False], LARGE) == SMALL


def test_a_rate_that_the_new_revision_has_not_measured_is_that_of_the_others():
    old = ReplicaCapacity(kv_tokens=100.0, prefill_tokens_per_s=9.0)
    assert of_next([old, LARGE], [False, True], UNKNOWN).prefill_tokens_per_s == 9.0


def test_a_replica_reports_its_capacity():
    reading = RuntimeState(
        kv=KvState(capacity_tokens=100), max_sequences=8, rates=MeasuredRates(prefill_tokens_per_s=5.0)
    )
    assert capacity_of(reading) == ReplicaCapacity(kv_tokens=100, slots=8, prefill_tokens_per_s=5.0)


@pytest.mark.parametrize(
    ("status", "measured", "capacity"),
    [
        ({}, True, UNKNOWN),
        (
            {"kv_tokens": 900, "prefill_tokens_per_second": 70},
            True,
            ReplicaCapacity(kv_tokens=900, slots=8, prefill_tokens_per_s=70),
        ),
        ({"kv_tokens": 900}, False, UNKNOWN),
        ({"kv_tokens": 900, "predicted_kv_tokens": 1000}, True, ReplicaCapacity(kv_tokens=900, slots=8)),
        ({"kv_tokens": 900, "predicted_kv_tokens": 1000}, False, ReplicaCapacity(kv_tokens=1000, slots=8)),
    ],
)
def test_a_replica_that_is_not_there_yet(status, measured, capacity):
    assert capacities.expected(Capacity(**status), 8, measured=measured) == capacity
