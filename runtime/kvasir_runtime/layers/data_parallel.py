"""The part of a step that one of several data-parallel ranks computes: the sequences whose blocks it has.

Called by `ranks`, in the processes of all ranks, with the batch of all sequences. Each rank has all of attention and
of layers without experts, and computes its own tokens there. Experts are divided: each rank gathers the tokens of all,
computes what its experts, or its parts of them, give, and what all give is summed (Rajbhandari et al. 2022, DeepSpeed
MoE). Which tokens are whose follows from the numbers of their blocks, so that no sizes are exchanged.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.decoder_step import ForwardOutput
from kvasir_runtime.kernels.kv_cache import KvCache
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.layers.decoder import Decoder
from kvasir_runtime.layers.row_exchange import OwnRows

Compute = Callable[[Batch, KvCache], ForwardOutput]


def forward(compute: Compute, decoder: Decoder, batch: Batch, cache: KvCache) -> ForwardOutput:
    """The hidden states of all wanted rows, at each rank. compute: the decoder's own `forward`."""
    assert decoder.exchange is not None
    mine, rows = own(batch, decoder.spec.rank.index, cache.blocks.shape[0], cache.block_size)
    decoder.exchange.use(rows)
    embedded = decoder.embedded(batch.token_ids)
    if mine is None:
        decoder.compute_for_others(embedded[:0])
        hidden = embedded[:0]
    else:
        hidden = compute(replace(mine, embeddings=embedded.index_select(0, rows.tokens)), cache).hidden
    return ForwardOutput(hidden=decoder.exchange.gathered(hidden, is_last=True))


def own(batch: Batch, rank: int, num_blocks: int, block_size: int) -> tuple[Batch | None, OwnRows]:
    """The sequences of a rank whose cache has num_blocks blocks, of all the rank-th so many, with the numbers that
    blocks have there, None where it has none; and which rows of the batch these are.
    """
    lengths = batch.attn_metadata[0]
    counts = torch.tensor(lengths.query_lens)
    ends = counts.cumsum(0)
    # Where the last token of a sequence goes: that block is there in every cache group, whatever windows have left.
    homes = batch.slots[0].index_select(0, ends - 1) // (num_blocks * block_size)
    of_tokens = homes.repeat_interleave(counts)
    tokens, sequences = ((those == rank).nonzero()[:, 0] for those in (of_tokens, homes))
    wanted = torch.arange(batch.token_ids.shape[0]) if batch.logit_rows is None else batch.logit_rows
    rows = (of_tokens.index_select(0, wanted) == rank).nonzero()[:, 0]
    mine: Batch | None = None
    if tokens.shape[0]:
        first, indices = rank * num_blocks, sequences.tolist()
        all_tables = (metadata.block_tables.index_select(0, sequences) - first for metadata in batch.attn_metadata)
        # What is behind a sequence's blocks, or was left by a window, is not read, but addresses follow from it.
        tables = [table.clamp(0, num_blocks - 1) for table in all_tables]
        query_lens, kv_lens = ([of[index] for index in indices] for of in (lengths.query_lens, lengths.kv_lens))
        metadata = AttentionMetadata(query_lens, kv_lens, tables[0])
        mine = replace(
            batch,
            token_ids=batch.token_ids.index_select(0, tokens),
            positions=batch.positions.index_select(0, tokens),
            slots=batch.slots.index_select(1, tokens) - first * block_size,
            attn_metadata=tuple(metadata.with_tables(table) for table in tables),
            logit_rows=torch.searchsorted(tokens, wanted.index_select(0, rows)),
        )
    sizes = {"num_tokens": batch.token_ids.shape[0], "num_rows": wanted.shape[0]}
    return mine, OwnRows(tokens=tokens, rows=rows, **sizes)


def own_copies(sources: Tensor, targets: Tensor, rank: int, num_blocks: int) -> tuple[Tensor, Tensor]:
    """Of blocks to copy, those of a rank, by the numbers that they have in its cache."""
    mine = sources // num_blocks == rank
    return sources[mine] - rank * num_blocks, targets[mine] - rank * num_blocks
