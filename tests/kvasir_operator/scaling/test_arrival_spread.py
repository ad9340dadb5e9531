"""How much arrivals vary between stretches: sums that grow by one of them, and what they come to."""

import pytest

from kvasir_operator.scaling.arrival_spread import LEAST_SPAN_S, ArrivalSpread
from kvasir_operator.scaling.load_counts import LoadCounts


def spread(*counts, span_s=10.0):
    found = ArrivalSpread()
    for count in counts:
        found = found.extended(LoadCounts(span_s=span_s, arrivals=count))
    return found


@pytest.mark.parametrize(
    ("counts", "want"),
    [
        ((), 1.0),
        ((40,), 1.0),
        ((0, 0, 0), 1.0),
        ((40, 41, 42, 43), 1.0),
        # Each pair differs by 8/s, squared over 1/10 + 1/10: 320, a hundred times the mean of 3.2/s.
        ((0, 80, 0, 80, 0), 100 - (3 / 4) ** 0.5),
    ],
)
def test_neighbours_that_differ_by_more_than_chance_disperse(counts, want):
    assert spread(*counts).dispersion == pytest.approx(want)


def test_a_stretch_that_is_too_short_is_left_out():
    assert spread(0, 90, span_s=LEAST_SPAN_S - 1) == ArrivalSpread()


def test_what_a_gateway_had_held_came_at_another_time():
    one = ArrivalSpread().extended(LoadCounts(span_s=10.0, arrivals=9, released=9, refused=-2))
    assert (one.number, one.came) == (1, 0)
