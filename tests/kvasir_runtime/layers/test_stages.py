"""How steps are divided among the parts that go through stages."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from kvasir_api.layouts import PART_TOKENS
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.layers import micro_batches
from kvasir_runtime.layers.batch import Batch


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
