"""Embedding and head of a decoder whose vocabulary is divided among ranks by ids. Called by `decoder`.

A token's embedding is that of the rank which has its row and zeros of the others, so their sum is exact. Of a head each
rank has the logits of its own ids: a greedy step moves the largest of each with its id, every other step the logits of
the rows that are sampled, to rank 0 alone.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from kvasir_runtime.kernels.argmax import INVALID
from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.layers.spec import DecoderSpec


def embedded(embed: Callable[[Tensor], Tensor], spec: DecoderSpec, group: Collectives, ids: Tensor) -> Tensor:
    """(tokens, hidden) of ids (tokens,) int64. embed: rows of this rank's part of the table."""
    own = spec.vocabulary_of(spec.rank.index)
    rows = embed((ids - own.start).clamp(0, len(own) - 1))
    foreign = (ids < own.start) | (ids >= own.stop)
    return group.all_reduce(rows.masked_fill(foreign.unsqueeze(1), 0))


def joined(logits: Tensor, spec: DecoderSpec, group: Collectives) -> Tensor:
    """(rows, vocab) at rank 0, and (rows, own ids) as they are at the others. logits: (rows, own ids) of each rank."""
    ids = [spec.vocabulary_of(rank) for rank in range(spec.rank.count)]
    widest = max(len(of_rank) for of_rank in ids)
    parts = group.gather(F.pad(logits, (0, widest - logits.shape[1])))
    if spec.rank.index:
        return logits
    return torch.cat([part[:, : len(of_rank)] for part, of_rank in zip(parts, ids, strict=True)], dim=1)


def greedy_ids(logits: Tensor, spec: DecoderSpec, group: Collectives) -> Tensor:
    """`kernels.argmax` of the joined logits at rank 0; at the others of no meaning. logits: as above."""
    index = logits.argmax(dim=-1, keepdim=True)  # of a NaN, which torch takes for the largest
    largest = logits.gather(1, index)
    first = spec.vocabulary_of(spec.rank.index).start
    candidates = group.gather(torch.cat((largest.double(), (index + first).double()), dim=1))
    best = candidates[..., 0].argmax(dim=0, keepdim=True)  # the first rank of equals, which has the lower ids
    value, chosen = candidates.gather(0, best.unsqueeze(2).expand(-1, -1, 2))[0].unbind(1)
    return torch.where(value.isfinite(), chosen.long(), INVALID)
