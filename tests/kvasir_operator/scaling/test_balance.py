"""How evenly the load lies on replicas."""

import pytest

from kvasir_api.state import KvState, RuntimeState
from kvasir_operator.scaling.balance import imbalance


def reading(pinned=0, running=0, waiting=0, *, slots=10, capacity=1000):
    kv = KvState(capacity_tokens=capacity, pinned_tokens=pinned, free_tokens=capacity - pinned)
    return RuntimeState(kv=kv, running=running, waiting=waiting, max_sequences=slots)


@pytest.mark.parametrize(
    ("readings", "fraction", "busiest"),
    [
        ([], 0.0, ""),
        ([reading(900)], 0.0, ""),
        ([reading(500), reading(500)], 0.0, "p0"),
        ([reading(100), reading(900)], 0.8, "p1"),
        ([reading(200), reading(900), reading(400)], 0.6, "p1"),
        ([reading(running=8), reading(running=2)], 0.6, "p0"),
        ([reading(running=10, waiting=90), reading(running=2)], 0.8, "p0"),  # full is full
        ([reading(capacity=0, slots=0), reading(300)], 0.3, "p1"),  # one that reports no capacity yet
    ],
)
def test_the_fullest_beside_the_others(readings, fraction, busiest):
    found = imbalance({f"p{number}": one for number, one in enumerate(readings)})
    assert found == (pytest.approx(fraction), busiest)
