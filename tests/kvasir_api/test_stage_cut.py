"""Between which layers a model is cut into stages."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_api.stage_cut import stage_layers


@pytest.mark.parametrize(
    ("layer_bytes", "first_bytes", "count", "want"),
    [
        ([1] * 8, 0, 1, [(0, 8)]),
        ([1] * 8, 0, 2, [(0, 4), (4, 8)]),
        ([1] * 8, 2, 2, [(0, 3), (3, 8)]),
        ([1, 9, 9, 9], 0, 2, [(0, 2), (2, 4)]),
        ([1] * 3, 100, 3, [(0, 1), (1, 2), (2, 3)]),
        # The first stage is the heaviest however the others are cut: they are cut evenly.
        ([1] * 9, 100, 3, [(0, 1), (1, 5), (5, 9)]),
    ],
)
def test_the_heaviest_stage_is_as_light_as_can_be(
    layer_bytes: list[int], first_bytes: int, count: int, want: list[tuple[int, int]]
) -> None:
    assert [(layers.start, layers.stop) for layers in stage_layers(layer_bytes, first_bytes, count)] == want


def test_no_stage_begins_with_a_layer_that_is_joined_to_the_one_before_it() -> None:
    found = stage_layers([1, 9] * 3, 0, 2, joined={1, 3, 5})
    assert [(layers.start, layers.stop) for layers in found] == [(0, 2), (2, 6)]
    with pytest.raises(ValueError, match="3 layers are fewer than 4 stages"):
        stage_layers([1, 9] * 3, 0, 4, joined={1, 3, 5})


@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=9),
    first=st.integers(0, 40),
    count=st.integers(1, 9),
    joined=st.sets(st.integers(1, 8), max_size=3),
)
def test_of_the_lightest_cuts_none_has_a_shorter_longest_stage(
    sizes: list[int], first: int, count: int, joined: set[int]
) -> None:
    places = [place for place in range(1, len(sizes)) if place not in joined]
    if count > len(places) + 1:
        with pytest.raises(ValueError, match="layers are fewer than"):
            stage_layers(sizes, first, count, joined)
        return

    def judged(ends: Sequence[int]) -> tuple[int, int]:
        pairs = list(pairwise((0, *ends, len(sizes))))
        heaviest = max(sum(sizes[start:end]) + (0 if start else first) for start, end in pairs)
        return heaviest, max(end - start for start, end in pairs)

    found = stage_layers(sizes, first, count, joined)
    ends = [layers.stop for layers in found[:-1]]
    assert [layers.start for layers in found] == [0, *ends]
    assert found[-1].stop == len(sizes)
    assert all(found)
    assert not joined & set(ends)
    assert judged(ends) == min(map(judged, combinations(places, count - 1)))
