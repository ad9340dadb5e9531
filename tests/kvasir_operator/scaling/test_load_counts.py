"""Sums of counts."""

from kvasir_operator.scaling.load_counts import LoadCounts, added, total

ONE = LoadCounts(span_s=2, arrivals=3, released=1, pinned_s=10)


def test_sums():
    assert total([ONE, ONE, LoadCounts(ended=4)]) == LoadCounts(span_s=4, arrivals=6, released=2, ended=4, pinned_s=20)
    assert added(ONE, ONE, 0.5) == LoadCounts(span_s=3, arrivals=4.5, released=1.5, pinned_s=15)
    assert total([]) == LoadCounts()
