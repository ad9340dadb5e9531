"""How layers are divided among stages, and steps among the parts that go through them."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvasir_api.layouts import PART_TOKENS
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.layers import micro_batches, stages
from kvasir_runtime.layers.decoder import Batch
from kvasir_runtime.layers.stages import LayerCosts


@pytest.mark.parametrize(
    ("layers", "first", "speeds", "want"),
    [
        pytest.param([1] * 8, 0, (1, 1), [(0, 4), (4, 8)], id="alike"),
        pytest.param([1] * 8, 2, (1, 1), [(0, 3), (3, 8)], id="a head in the first"),
        pytest.param([1, 9, 9, 9], 0, (1, 1), [(0, 2), (2, 4)], id="one that is light"),
        pytest.param([1] * 3, 100, (1, 1, 1), [(0, 1), (1, 2), (2, 3)], id="a head that is all"),
        pytest.param([1] * 9, 0, (1, 0.5), [(0, 6), (6, 9)], id="a slow second node"),
        pytest.param([1] * 9, 0, (0.5, 1), [(0, 3), (3, 9)], id="a slow first node"),
        pytest.param([1] * 12, 0, (1, 0.5, 1), [(0, 5), (5, 7), (7, 12)], id="a slow node between"),
        pytest.param([1] * 9, 3, (0.5, 1), [(0, 1), (1, 9)], id="a slow first node with the head"),
    ],
)
def test_the_slowest_stage_is_as_fast_as_can_be(
    layers: list[int], first: int, speeds: tuple[float, ...], want: list[tuple[int, int]]
) -> None:
    found = stages.divided(LayerCosts(layers, first), len(speeds), speeds=speeds)
    assert [(own.start, own.stop) for own in found] == want


@pytest.mark.parametrize(
    ("most", "want"),
    [
        pytest.param(100, [(0, 7), (7, 8)], id="room for what takes less time"),
        pytest.param(24, [(0, 4), (4, 8)], id="room for less"),
        pytest.param(0, [(0, 3), (3, 8)], id="as small as can be"),
    ],
)
def test_a_stage_is_no_larger_than_its_memory_where_a_cut_is(most: float, want: list[tuple[int, int]]) -> None:
    """The last layer takes as long as the seven others; the first stage has a table that takes no time."""
    times, sizes = LayerCosts([1] * 7 + [7]), LayerCosts([4] * 8, 8)
    found = stages.divided(times, 2, sizes=sizes, most_size=most)
    assert [(own.start, own.stop) for own in found] == want


def test_no_stage_begins_with_a_layer_that_is_joined_to_the_one_before_it() -> None:
    found = stages.divided(LayerCosts([1, 9] * 3), 2, joined={1, 3, 5})
    assert [(layers.start, layers.stop) for layers in found] == [(0, 2), (2, 6)]
    with pytest.raises(ValueError, match="3 layers are fewer than 4 stages"):
        stages.divided(LayerCosts([1, 9] * 3), 4, joined={1, 3, 5})


@given(
    layers=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=7),
    first=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    speeds=st.lists(st.sampled_from([1.0, 0.5, 0.25]), min_size=1, max_size=7),
    most=st.integers(0, 60),
)
def test_no_other_cut_that_fits_is_faster(
    layers: list[tuple[int, int]], first: tuple[int, int], speeds: list[float], most: int
) -> None:
    times, sizes = (LayerCosts([one[of] for one in layers], first[of]) for of in (0, 1))
    count = len(speeds)
    if count > len(layers):
        with pytest.raises(ValueError, match="layers are fewer than"):
            stages.divided(times, count)
        return

    def largest(costs: LayerCosts, ends: tuple[int, ...], by: Sequence[float]) -> float:
        cuts = pairwise((0, *ends, len(layers)))
        each = [sum(costs.layers[start:end]) + (0 if start else costs.first) for start, end in cuts]
        return max(cost / speed for cost, speed in zip(each, by, strict=True))

    found = stages.divided(times, count, speeds=speeds, sizes=sizes, most_size=most)
    ends = tuple(own.stop for own in found[:-1])
    assert [own.start for own in found] == [0, *ends]
    assert all(found)
    possible = list(combinations(range(1, len(layers)), count - 1))
    alike = [1.0] * count
    room = max(most, min(largest(sizes, one, alike) for one in possible))
    fitting = [one for one in possible if largest(sizes, one, alike) <= room]
    assert ends in fitting
    assert largest(times, ends, speeds) == min(largest(times, one, speeds) for one in fitting)


@given(
    lengths=st.lists(st.tuples(st.integers(1, 150), st.integers(0, 50)), min_size=1, max_size=6),
    stages_=st.integers(2, 8),
    whole=st.booleans(),
    seed=st.integers(0, 99),
)
def test_parts_are_the_step_with_nothing_lost(
    lengths: list[tuple[int, int]], stages_: int, whole: bool, seed: int
) -> None:
    queries, known = [query for query, _ in lengths], [query + before for query, before in lengths]
    total, generator = sum(queries), torch.Generator().manual_seed(seed)
    tables = [torch.arange(len(lengths) * 3).view(len(lengths), 3) + 100 * group for group in range(2)]
    metadata = AttentionMetadata(queries, known, tables[0])
    positions = torch.cat([torch.arange(end - query, end) for query, end in zip(queries, known, strict=True)])
    batch = Batch(
        token_ids=torch.arange(total),
        positions=positions,
        slots=torch.stack((torch.arange(total), torch.arange(total) + 1000)),
        attn_metadata=(metadata, metadata.with_tables(tables[1])),
        logit_rows=torch.randperm(total, generator=generator)[: total // 2],
    )
    parts = micro_batches.cut(batch, stages_, whole_sequences=whole)
    assert torch.equal(torch.cat([part.batch.token_ids for part in parts]), batch.token_ids)
    assert torch.equal(torch.cat([part.batch.slots for part in parts], dim=1), batch.slots)
    assert len(parts) <= min(max(total // PART_TOKENS, 1), 4 * stages_)
    rows = torch.full((total // 2,), -1)
    for part in parts:
        rows[part.places] = part.batch.token_ids[part.batch.logit_rows]
        own, other = part.batch.attn_metadata
        first = 0
        for index, (query, end) in enumerate(zip(own.query_lens, own.kv_lens, strict=True)):
            sequence = int(own.block_tables[index, 0]) // 3
            assert part.batch.positions[first : first + query].tolist() == list(range(end - query, end))
            assert torch.equal(other.block_tables[index], tables[1][sequence])
            assert not whole or (query, end) == (queries[sequence], known[sequence])
            first += query
    assert torch.equal(rows, batch.logit_rows)
