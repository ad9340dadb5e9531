"""The largest of the last levels, against the list of all of them."""

from hypothesis import given
from hypothesis import strategies as st

from kvasir_operator.scaling.level_window import LevelWindow


@given(st.lists(st.tuples(st.floats(0.1, 50), st.integers(0, 9)), max_size=60), st.floats(1, 100))
def test_the_largest_is_that_of_all_levels_in_the_window(steps, length):
    window, seen, now = LevelWindow(), [], 0.0
    for later, level in steps:
        now += later
        window = window.since(now - length).extended(now, level)
        seen = [(at, kept) for at, kept in seen if at > now - length] + [(now, level)]
        assert window.largest == max(kept for _, kept in seen)
        assert len(window.entries) <= 10


def test_an_empty_window_has_no_largest():
    assert LevelWindow().largest is None
