"""Counts of the minutes before the last one: stretches, what leaves them, and sums that are those of the parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_operator.scaling.arrival_spread import ArrivalSpread
from kvasir_operator.scaling.load_counts import LoadCounts, total
from kvasir_operator.scaling.past_load import JOINED_S, PastLoad, Stretch


def ticks(*spans_s, arrivals=1):
    """Ticks that follow one another from 0 on."""
    found, at = [], 0.0
    for span_s in spans_s:
        at += span_s
        found.append(Stretch(at, LoadCounts(span_s=span_s, arrivals=arrivals)))
    return found


@pytest.mark.parametrize(
    ("spans_s", "want"),
    [
        ((), []),
        ((2,), [(2, 1)]),
        ((2, 2, 2, 2, 2), [(10, 5)]),
        ((2, 2, 2, 2, 2, 2), [(10, 5), (12, 1)]),
        ((20, 20, 2, 2), [(20, 1), (40, 1), (44, 2)]),  # ticks after rests stay by themselves
        ((2, 20, 2), [(2, 1), (22, 1), (24, 1)]),
    ],
)
def test_ticks_are_joined_while_they_are_short_together(spans_s, want):
    past = PastLoad().extended(ticks(*spans_s))
    assert [(s.at, s.counts.arrivals) for s in past.stretches] == want


def test_what_ended_by_a_time_leaves():
    past = PastLoad().extended(ticks(10, 10, 10, 4, arrivals=3))
    assert [c.arrivals for c in past.until(20.0)] == [3, 3]
    assert [s.at for s in past.since(20.0).stretches] == [30, 34]
    assert past.since(0.0) is past
    assert past.since(34.0) == PastLoad()
    assert PastLoad().until(99.0) == ()


SPANS = st.lists(st.sampled_from((0.5, 2.0, 3.0, 20.0)), max_size=40)


@given(SPANS, st.floats(0.0, 400.0))
def test_the_sums_are_those_of_the_stretches(spans_s, at):
    past = PastLoad().extended(ticks(*spans_s)).since(at)
    spread = ArrivalSpread()
    for stretch in past.closed:
        spread = spread.extended(stretch.counts)
    assert past.total == total(s.counts for s in past.closed)
    assert past.counts == total(s.counts for s in past.stretches)
    assert past.spread == pytest.approx(spread)
    assert all(s.at > at for s in past.stretches)
    assert all(s.counts.span_s <= max(JOINED_S, 20.0) for s in past.stretches)
