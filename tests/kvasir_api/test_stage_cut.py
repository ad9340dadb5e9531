"""Between which layers a model is cut into stages."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_api.stage_cut import FEWER_TOKENS, SLOWER, SPARE, LayerCosts, StageRoom, balanced_stages, stage_layers


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


AMPLE = StageRoom(num_bytes=1 << 40, layer_cache_bytes=0)


@pytest.mark.parametrize(
    ("read", "head", "held", "beside", "room", "want"),
    [
        pytest.param(10, 80, 10, 200, AMPLE, [8, 16], id="a table is not read"),
        pytest.param(10, 80, 10, 200, StageRoom(num_bytes=352, layer_cache_bytes=0), [8, 16], id="a smaller cache"),
        pytest.param(10, 80, 10, 200, StageRoom(num_bytes=351, layer_cache_bytes=0), [2, 22], id="too small a cache"),
        pytest.param(10, 80, 10, 200, StageRoom(num_bytes=375, layer_cache_bytes=3), [8, 16], id="room for the cache"),
        pytest.param(10, 80, 10, 200, StageRoom(num_bytes=375, layer_cache_bytes=5), [2, 22], id="a larger cache"),
        pytest.param(10, 80, 10, 200, StageRoom(num_bytes=464, layer_cache_bytes=12), [12, 12], id="no room by bytes"),
        pytest.param(10, 80, 10, 200, StageRoom(num_bytes=9, layer_cache_bytes=6), [2, 22], id="no room at all"),
        pytest.param(4, 80, 10, 90, AMPLE, [3, 21], id="experts that no request goes to"),
    ],
)
def test_stages_are_cut_by_what_a_step_reads_while_memory_allows(
    read: int, head: int, held: int, beside: int, room: StageRoom, want: list[int]
) -> None:
    of_read, of_held = (LayerCosts(layers=[each] * 24, first=first) for each, first in ((read, head), (held, beside)))
    assert [len(stage) for stage in balanced_stages(of_read, of_held, 2, room)] == want


def test_a_stage_that_is_hardly_slower_is_taken_where_the_largest_is_smaller() -> None:
    """With 20 of 41 layers the first stage reads as much as the second; with 19 a twentieth less, and holds less."""
    read, held = LayerCosts(layers=[20] * 41, first=20), LayerCosts(layers=[20] * 41, first=40)
    assert [len(stage) for stage in balanced_stages(read, held, 2, AMPLE)] == [20, 21]
    held = LayerCosts(layers=[20] * 41, first=70)
    assert [len(stage) for stage in balanced_stages(read, held, 2, AMPLE)] == [19, 22]


def test_a_cut_that_would_leave_the_cache_half_as_many_tokens_is_not_taken() -> None:
    """Of 28 layers in four stages, the first with a table: by bytes 1, 9, 9 and 9, by what is read 4, 8, 8 and 8."""
    read, held = LayerCosts(layers=[10] * 28, first=40), LayerCosts(layers=[10] * 28, first=80)
    counts = {
        room: [len(stage) for stage in balanced_stages(read, held, 4, StageRoom(num_bytes=room, layer_cache_bytes=0))]
        for room in (140, 10_000)
    }
    assert counts == {140: [1, 9, 9, 9], 10_000: [4, 8, 8, 8]}


@given(
    layers=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8),
    first=st.tuples(st.integers(0, 30), st.integers(0, 30)),
    count=st.integers(1, 8),
    joined=st.sets(st.integers(1, 7), max_size=2),
    room=st.builds(StageRoom, num_bytes=st.integers(0, 90), layer_cache_bytes=st.integers(0, 9)),
)
def test_a_cut_fits_where_any_does_and_reads_no_more_than_that_by_bytes(
    layers: list[tuple[int, int]], first: tuple[int, int], count: int, joined: set[int], room: StageRoom
) -> None:
    places = [place for place in range(1, len(layers)) if place not in joined]
    read, held = (LayerCosts(layers=[one[of] for one in layers], first=first[of]) for of in (0, 1))
    if count > len(places) + 1:
        with pytest.raises(ValueError, match="layers are fewer than"):
            balanced_stages(read, held, count, room, joined)
        return
    found = balanced_stages(read, held, count, room, joined)
    assert [layer for stage in found for layer in stage] == list(range(len(layers)))
    assert len(found) == count
    assert all(found)
    assert not joined & {stage.start for stage in found}
    every = [
        tuple(range(start, end) for start, end in pairwise((0, *ends, len(layers))))
        for ends in combinations(places, count - 1)
    ]
    lightest = stage_layers(held.layers, held.first, count, joined)
    assert room.holds(held, found) == any(room.holds(held, one) for one in every)
    if room.holds(held, lightest):
        assert read.most(found) <= read.most(lightest)
    least = min(read.most(one) for one in every)
    near = min(least + least // SLOWER, read.most(lightest))
    best = min((held.most(one), max(map(len, one)), read.most(one)) for one in every if read.most(one) <= near)
    of_lightest = (room.num_bytes - held.most(lightest)) / max(map(len, lightest))
    leaves = (room.num_bytes - best[0]) / best[1] >= of_lightest * (1 - 1 / FEWER_TOKENS) - 1e-9
    if leaves and best[0] + best[1] * room.layer_cache_bytes + room.num_bytes // SPARE <= room.num_bytes:
        assert (held.most(found), max(map(len, found)), read.most(found)) == best
