"""A step cut into parts that go through the stages of a pipeline one behind the other, so that all stages compute.

A sequence may be cut too: the later part reads from the cache what the earlier one wrote, as a later chunk does.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from torch import Tensor

from kvasir_api.layouts import PART_TOKENS, PARTS_PER_STAGE
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.layers.batch import Batch


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A part of a batch. places: (rows,) int64, which of the wanted rows of the batch its own are, in their order."""

    batch: Batch
    places: Tensor


def cut(batch: Batch, stages: int, *, whole_sequences: bool) -> tuple[MicroBatch, ...]:
    """The parts of a batch of a decoder with logit_rows, in the order of its tokens, at least one.

    whole_sequences: cut none, as where layers have a state, which blocks hold as of the end of a step's chunk only.
    """
    lengths, rows = batch.attn_metadata[0], batch.logit_rows
    assert rows is not None
    total, starts = batch.token_ids.shape[0], _starts(lengths.query_lens)
    parts = max(min(total // PART_TOKENS, PARTS_PER_STAGE * stages), 1)
    cuts = {total * part // parts for part in range(parts)}
    if whole_sequences:
        cuts = {max(start for start in starts if start <= cut) for cut in cuts}
    return tuple(_part(batch, rows, starts, begin, end) for begin, end in pairwise([*sorted(cuts), total]))


def _starts(query_lens: Sequence[int]) -> list[int]:
    """Index of the first token of each sequence."""
    starts = [0]
    for length in query_lens[:-1]:
        starts.append(starts[-1] + length)
    return starts


def _part(batch: Batch, rows: Tensor, starts: Sequence[int], begin: int, end: int) -> MicroBatch:
    """Of the tokens from begin to end."""
    places = ((rows >= begin) & (rows < end)).nonzero()[:, 0]
    pieces = list(_pieces(batch.attn_metadata[0], starts, begin, end))
    first, last = pieces[0][0], pieces[-1][0] + 1
    lengths = AttentionMetadata([piece[1] for piece in pieces], [piece[2] for piece in pieces], rows)
    part = replace(
        batch,
        token_ids=batch.token_ids[begin:end],
        positions=batch.positions[begin:end],
        slots=batch.slots[:, begin:end],
        attn_metadata=tuple(lengths.with_tables(of.block_tables[first:last]) for of in batch.attn_metadata),
        logit_rows=rows[places] - begin,
    )
    return MicroBatch(part, places)


def _pieces(metadata: AttentionMetadata, starts: Sequence[int], begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Each sequence with tokens there, how many, and its known positions behind the last of them."""
    lens = zip(starts, metadata.query_lens, metadata.kv_lens, strict=True)
    for index, (start, length, known) in enumerate(lens):
        first, last = max(start, begin), min(start + length, end)
        if first < last:
            yield index, last - first, known - (start + length - last)
