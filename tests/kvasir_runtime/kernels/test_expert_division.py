"""Which copy of an expert computes which rows: levels that are written out, and that every row is computed once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_runtime.kernels.expert_division import Copies, RowRange, divided

HALVES = (range(4), range(4, 8))


@pytest.mark.parametrize(
    ("counts", "copies", "loads", "ranges"),
    [
        ((40, 0, 0, 0, 0, 0, 0, 0), ((), ()), [40, 0], {}),
        ((40, 0, 0, 0, 0, 0, 0, 0), ((), (0,)), [20, 20], {0: (RowRange(0, 0, 20), RowRange(1, 20, 40))}),
        ((41, 0, 0, 0, 9, 0, 0, 0), ((), (0,)), [25, 25], {0: (RowRange(0, 0, 25), RowRange(1, 25, 41))}),
        ((16, 0, 0, 0, 60, 0, 0, 0), ((), (0,)), [16, 60], {0: (RowRange(0, 0, 16), RowRange(1, 16, 16))}),
        # Fewer than 2 * 8 rows stay together, where there are fewer.
        ((15, 5, 0, 0, 6, 0, 0, 0), ((), (0,)), [20, 6], {0: (RowRange(0, 0, 15),)}),
        ((15, 7, 0, 0, 6, 0, 0, 0), ((), (0,)), [7, 21], {0: (RowRange(1, 0, 15),)}),
    ],
)
def test_rows_level_the_ranks(
    counts: tuple[int, ...], copies: Copies, loads: list[int], ranges: dict[int, tuple[RowRange, ...]]
) -> None:
    assert divided(counts, HALVES, copies) == (loads, ranges)


@given(
    counts=st.lists(st.integers(0, 60), min_size=9, max_size=9),
    copies=st.tuples(*[st.sets(st.integers(0, 8), max_size=4)] * 3),
    least=st.integers(1, 20),
)
def test_every_row_is_computed_once_by_a_rank_that_has_the_expert(
    counts: list[int], copies: tuple[set[int], ...], least: int
) -> None:
    homes = (range(2), range(2, 5), range(5, 9))
    held = tuple(tuple(sorted(some - set(home))) for some, home in zip(copies, homes, strict=True))
    loads, ranges = divided(counts, homes, held, least)
    computed = [0, 0, 0]
    for rank, home in enumerate(homes):
        computed[rank] = sum(counts[expert] for expert in home if expert not in ranges)
    for expert, parts in ranges.items():
        assert parts[0].first == 0
        assert parts[-1].end == counts[expert]
        assert all(one.end == after.first for one, after in pairwise(parts))
        for rank, first, end in parts:
            assert expert in homes[rank] or expert in held[rank]
            computed[rank] += end - first
    assert loads == computed
    assert set(ranges) == {expert for some in held for expert in some}
    alone = max(divided(counts, homes, ((), (), ()), least)[0])
    assert least > 1 or max(loads) <= alone
