"""What stays known of a service while it has no replica."""

import pytest

from kvasir_api.state import RuntimeState, ServiceDemand
from kvasir_operator.scaling.last_known import LastKnown, with_past, with_release, with_requests
from kvasir_operator.scaling.load_counts import LoadCounts


def test_counts_fade_with_the_time_in_which_there_were_requests():
    old = LoadCounts(span_s=1800, arrivals=8, running_s=80)
    known = with_past(LastKnown(), [old, LoadCounts(span_s=86_400), old])
    assert (known.past.arrivals, known.past.running_s) == (12, 120)


@pytest.mark.parametrize(
    ("readings", "gateways", "arrivals", "expected"),
    [
        ((), (), 0, 50.0),
        ((RuntimeState(running=1),), (), 0, 100.0),
        ((RuntimeState(waiting=1),), (), 0, 100.0),
        ((RuntimeState(),), (), 1, 100.0),
        ((), ({"held": 1},), 0, 100.0),
        ((), ({"last_request_age_s": 20.0}, {"last_request_age_s": 30.0}), 0, 80.0),
        ((), ({"last_request_age_s": 70.0}, {}), 0, 50.0),
    ],
)
def test_the_last_request_is_the_newest_that_anybody_knows_of(readings, gateways, arrivals, expected):
    demands = [ServiceDemand(namespace="a", name="b", **fields) for fields in gateways]
    known = with_requests(LastKnown(requested_at=50.0), readings, demands, arrivals=arrivals, now=100.0)
    assert known.requested_at == expected


def test_what_was_held_is_taken_from_the_arrivals_of_the_next_seconds():
    known, taken = with_release(LastKnown(), released=100, arrivals=0, now=10.0)
    assert taken == 0
    known, taken = with_release(known, released=-3, arrivals=70, now=12.0)
    assert taken == 70
    known, taken = with_release(known, released=0, arrivals=40, now=14.0)
    assert taken == 30
    known, taken = with_release(known, released=50, arrivals=0, now=16.0)
    known, taken = with_release(known, released=0, arrivals=50, now=30.0)
    assert taken == 0  # they were given up: nothing of them came
