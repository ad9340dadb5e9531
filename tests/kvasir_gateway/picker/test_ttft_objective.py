"""When the first token of a held request has to come, by its client and by what its service's replicas report."""

from math import inf

import pytest

from kvasir_api import names
from kvasir_api.state import QueueBounds, RuntimeState
from kvasir_gateway.picker import ttft_objective


def due_s(*stated, headers=None):
    states = [RuntimeState(queue=QueueBounds(ttft_s=ttft_s)) for ttft_s in stated]
    return ttft_objective.due_s(headers or {}, states, began_s=100.0)


@pytest.mark.parametrize(
    ("stated", "want"),
    [
        ((), inf),
        ((0.0, 0.0), inf),
        ((5.0,), 105.0),
        ((5.0, 5.0, 0.002), 105.0),  # one is wrong
        ((5.0, 0.002), 105.0),
        ((0.0, 0.0, 5.0), inf),  # the first pod of a rollout
        ((0.0, 5.0, 5.0), 105.0),  # and the second
        ((1e-9, 1e-9, 5.0), 105.0),
        ((-1.0, 5e-324), inf),
    ],
)
def test_one_replica_does_not_set_the_objective_of_its_service(stated, want):
    assert due_s(*stated) == want


@pytest.mark.parametrize(("value", "want"), [("2000", 102.0), ("0", inf), ("nan", inf), ("x", inf)])
def test_the_clients_own_objective_comes_first(value, want):
    assert due_s(5.0, headers={names.HEADER_TTFT: value}) == want
