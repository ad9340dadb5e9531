"""What the runner keeps of each running sequence between steps: a row of tokens, blocks and sampling parameters.

Only plans change rows. `host_state` has the rows of a device that is the host itself, `device_state` those of a device
that does not wait for the host.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, StepPlan
from kvasir_runtime.kernels.sample import Draws
from kvasir_runtime.layers.batch import Batch

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AppendPositions:
    """Where rows on a device take the tokens that a step samples. rows: (samples,) int64; ends: (samples,) int32."""

    rows: Tensor
    ends: Tensor


@dataclass(frozen=True, slots=True)
class ModelInput:
    """What a step computes. positions: of the tokens that it samples, None for rows on the host, which know them."""

    batch: Batch
    positions: AppendPositions | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingMetadata:
    """How a step is sampled. forbidden: (pairs, 2) int64, sample and id that may not be sampled; None for none."""

    draws: Draws
    forbidden: Tensor | None


class RowState(Protocol):
    """What the runner needs of rows, wherever they are."""

    @property
    def tokens(self) -> Tensor:
        """(rows, positions) int32 on the device: the known ids of every row."""

    @property
    def num_bytes(self) -> int:
        """Of device memory; 0 where that is the host's, whose pages are taken as they are written."""

    def apply(self, plan: StepPlan) -> None:
        """Apply joins, forks, grows, inserts, drafts. Leaves need nothing: a row is overwritten when used again."""

    def model_input(self, chunks: Sequence[Chunk]) -> ModelInput:
        """The query tokens of a step's chunks, in order. Logits are for those that sample, are scored, are pooled."""

    def prompt_logprob_ids(self, chunks: Sequence[Chunk]) -> Tensor:
        """(tokens,) int64: the ids whose logprobs the scored ones among a step's chunks need, in their order."""

    def sampling_metadata(
        self, sampling_chunks: Sequence[Chunk], positions: AppendPositions | None
    ) -> SamplingMetadata:
        """How the chunks that sample are sampled."""

    def all_greedy(self, sampling_chunks: Sequence[Chunk]) -> bool:
        """Whether all chunks that sample take the most likely token, and none is forbidden."""

    def any_filtered(self, sampling_chunks: Sequence[Chunk]) -> bool:
        """Whether one that samples at random has top_k, top_p or min_p."""

    def append(
        self,
        sampling_chunks: Sequence[Chunk],
        ids: Tensor,
        positions: AppendPositions | None,
        dropped: Collection[int] = (),
    ) -> None:
        """Append the sampled id of each chunk that samples to its row, except those whose index is in dropped."""

    def free_positions(self, position: int) -> int:
        """Tokens that a row can hold from a position on."""

    def write_tokens(self, row: int, position: int, token_ids: Sequence[int]) -> None:
        """Write known ids into a row, from a position on."""


def token_types(chunks: Sequence[Chunk], second_from: Ints) -> Ints | None:
    """(tokens,) of the chunks' tokens, 1 in the second text of a pair; None where there is none.

    second_from: of each row the position at which its second text begins, 0 without one.
    """
    begins = second_from[[chunk.row for chunk in chunks]]
    if not begins.any():
        return None
    parts = [
        np.arange(chunk.start, chunk.start + chunk.num_tokens) >= (begin or chunk.start + chunk.num_tokens)
        for chunk, begin in zip(chunks, begins.tolist(), strict=True)
    ]
    return np.concatenate(parts).astype(np.int64)


def logits_indices(chunks: Sequence[Chunk], ends: Ints) -> Ints:
    """Indices of the tokens that are sampled from, scored, pooled. ends: (chunks,) where each ends among the tokens."""
    logits_indices = [(ends - 1)[[chunk.samples for chunk in chunks]]]
    if any(chunk.drafts for chunk in chunks):
        sampling = [(end, len(chunk.drafts)) for end, chunk in zip(ends.tolist(), chunks, strict=True) if chunk.samples]
        logits_indices = [np.concatenate([np.arange(end - count - 1, end) for end, count in sampling])]
    for end, chunk in zip(ends.tolist(), chunks, strict=True):
        if chunk.scores[0] < chunk.scores[1]:
            first = end - chunk.num_tokens - chunk.start - 1  # index of the token that gives position 0
            logits_indices.append(np.arange(first + chunk.scores[0], first + chunk.scores[1]))
    for end, chunk in zip(ends.tolist(), chunks, strict=True):
        if chunk.pools[0] < chunk.pools[1]:
            first = end - chunk.num_tokens - chunk.start  # index of position 0
            logits_indices.append(np.arange(first + chunk.pools[0], first + chunk.pools[1]))
    return logits_indices[0] if len(logits_indices) == 1 else np.concatenate(logits_indices)
