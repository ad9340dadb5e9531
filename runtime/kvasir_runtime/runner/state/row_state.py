"""The rows: what the runner knows of each running sequence between steps. Plans change them; nothing else does.

`Rows` are for a device that is the host itself: arrays that plans write and steps read, without a copy in between.
`device_state` has the same for a device that must not wait for the host.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, Fork, StepPlan
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.sample import Draws
from kvasir_runtime.layers.decoder import Batch
from kvasir_runtime.runner.state.row_sampling_params import RowSamplingParams

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingMetadata:
    """The sampling half of a step. forbidden: (pairs, 2) int64, samples and ids that may not be drawn, if any."""

    draws: Draws
    forbidden: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInput:
    """What a step computes, and for device rows where its draws go.

    rows: (samples,) int64 and ends: (samples,) int32, row and place of each token that will be drawn. batch: None of a
    recorded step, whose memory others may use by then.
    """

    batch: Batch | None = None
    rows: Tensor | None = None
    ends: Tensor | None = None

    def computed(self) -> Batch:
        """batch, of a step that is not recorded."""
        assert self.batch is not None
        return self.batch

    def places(self) -> tuple[Tensor, Tensor]:
        """rows and ends, of inputs that were made by device rows."""
        assert self.rows is not None
        assert self.ends is not None
        return self.rows, self.ends


class RowState(Protocol):
    """What the runner needs of rows, wherever they are."""

    @property
    def tokens(self) -> Tensor:
        """(rows, positions) int32 on the device: the known ids of every row."""

    @property
    def num_bytes(self) -> int:
        """Of device memory; 0 where that is the host's, whose pages are taken as they are written."""

    def apply(self, plan: StepPlan) -> None:
        """Take in joins, forks, grows and inserts. Leaves need nothing: a row is overwritten when it is used again."""

    def batch(self, chunks: Sequence[Chunk]) -> ModelInput:
        """The query tokens of a step's chunks, in order; wanted rows: those that sample, that score, that pool."""

    def prompt_logprob_ids(self, chunks: Sequence[Chunk]) -> Tensor:
        """(tokens,) int64: the ids that the scoring ones among a step's chunks ask for, in their order."""

    def sampling(self, sampled: Sequence[Chunk], inputs: ModelInput) -> SamplingMetadata:
        """How the chunks that sample are drawn."""

    def greedy(self, sampled: Sequence[Chunk]) -> bool:
        """Whether all chunks that sample want the most likely token, and may have any."""

    def filtered(self, sampled: Sequence[Chunk]) -> bool:
        """Whether one that draws at random narrows what may be drawn."""

    def append(
        self, sampled: Sequence[Chunk], ids: Tensor, inputs: ModelInput, discarded: Collection[int] = ()
    ) -> None:
        """Append the sampled id of each chunk that samples to its row, except those at the places in discarded."""

    def room(self, position: int) -> int:
        """Tokens that a row can hold from a position on."""

    def extend(self, row: int, position: int, token_ids: Sequence[int]) -> None:
        """Write known ids into a row, from a position on."""


class HostRowState:
    """State of up to max_sequences sequences of up to max_model_len tokens."""

    def __init__(
        self,
        *,
        max_sequences: int,
        max_model_len: int,
        block_size: int,
        eos_token_ids: Sequence[int],
    ) -> None:
        self._block_size = block_size
        self._tokens = torch.empty((max_sequences, max_model_len + 1), dtype=torch.int32)
        # The same memory: for small arrays numpy is the quicker one.
        self._host: NDArray[np.int32] = self._tokens.numpy()
        self._block_tables = np.zeros((max_sequences, -(-max_model_len // block_size)), dtype=np.int64)
        self._num_blocks = [0] * max_sequences
        # First id of a row whose blocks are consecutive ids, else -1: its cache can be read without gathering it.
        self._first_blocks = [-1] * max_sequences
        self._params = RowSamplingParams(max_sequences, eos_token_ids)

    def apply(self, plan: StepPlan) -> None:
        """As `RowState` says, and so the others."""
        for join in plan.joins:
            self._host[join.row, : len(join.tokens)] = join.tokens
            self._num_blocks[join.row], self._first_blocks[join.row] = 0, -1
            self._append_blocks(join.row, join.blocks)
            self._params.set(join.row, join.sampling)
        if plan.forks:
            self._fork(plan.forks)
        for grow in plan.grows:
            self._append_blocks(grow.row, grow.blocks)
        for insert in plan.inserts:
            self.extend(insert.row, insert.position, insert.tokens)

    @property
    def tokens(self) -> Tensor:
        """(rows, positions) int32: the known ids of every row."""
        return self._tokens

    @property
    def arrays(self) -> tuple[NDArray[np.int32], Ints]:
        """Where they lie for good: (rows, positions) known ids, and (rows, blocks) ids of blocks."""
        return self._host, self._block_tables

    @property
    def num_bytes(self) -> int:
        """None of a device."""
        return 0

    def batch(self, chunks: Sequence[Chunk]) -> ModelInput:
        """The query tokens of a step's chunks, in order; wanted rows: those that sample, that score, that pool."""
        rows = np.array([chunk.row for chunk in chunks])
        lens = np.array([chunk.num_tokens for chunk in chunks])
        starts = np.array([chunk.start for chunk in chunks])
        ends = np.cumsum(lens)
        token_rows, positions = rows, starts
        if ends[-1] > len(chunks):
            token_rows = np.repeat(rows, lens)
            positions = np.arange(ends[-1]) + np.repeat(starts - ends + lens, lens)
        slots = self._block_tables[token_rows, positions // self._block_size] * self._block_size
        slots += positions % self._block_size
        kv_lens = (starts + lens).tolist()
        longest = -(-max(kv_lens) // self._block_size)
        attn_metadata = AttentionMetadata(
            lens.tolist(),
            kv_lens,
            torch.from_numpy(self._block_tables[rows, :longest]),
            [self._first_blocks[chunk.row] for chunk in chunks],
        )
        return ModelInput(
            batch=Batch(
                token_ids=torch.from_numpy(self._host[token_rows, positions].astype(np.int64)),
                positions=torch.from_numpy(positions),
                slots=torch.from_numpy(slots),
                attn_metadata=attn_metadata,
                logit_rows=torch.from_numpy(logits_indices(chunks, ends)),
            )
        )

    def prompt_logprob_ids(self, chunks: Sequence[Chunk]) -> Tensor:
        """(tokens,) int64: the ids that the scoring ones among a step's chunks ask for, in their order."""
        return torch.cat([self._tokens[chunk.row, slice(*chunk.scores)] for chunk in chunks]).long()

    def sampling(self, sampled: Sequence[Chunk], inputs: ModelInput) -> SamplingMetadata:  # noqa: ARG002 - others need them
        """How the chunks that sample are drawn."""
        rows, params = np.array([chunk.row for chunk in sampled], dtype=np.int64), self._params
        positions = np.array([chunk.start + chunk.num_tokens for chunk in sampled], dtype=np.int64)
        draws = Draws(
            temperature=torch.from_numpy(params.temperature[rows]),
            top_k=torch.from_numpy(params.top_k[rows]),
            top_p=torch.from_numpy(params.top_p[rows]),
            min_p=torch.from_numpy(params.min_p[rows]),
            seed=torch.from_numpy(params.seed[rows]),
            position=torch.from_numpy(positions),
            all_greedy=params.zero_temperature(sampled),
            any_filter=params.filtered(sampled),
        )
        pairs = params.forbidden(sampled)
        return SamplingMetadata(draws=draws, forbidden=torch.tensor(pairs) if pairs else None)

    def greedy(self, sampled: Sequence[Chunk]) -> bool:
        """Whether all chunks that sample want the most likely token, and may have any."""
        return self._params.greedy(sampled)

    def filtered(self, sampled: Sequence[Chunk]) -> bool:
        """Whether one that draws at random narrows what may be drawn."""
        return self._params.filtered(sampled)

    def append(
        self,
        sampled: Sequence[Chunk],
        ids: Tensor,
        inputs: ModelInput,  # noqa: ARG002 - others need them
        discarded: Collection[int] = (),
    ) -> None:
        """As in `RowState`."""
        drawn = ids.numpy()
        if discarded:
            kept = [place for place in range(len(sampled)) if place not in discarded]
            sampled, drawn = [sampled[place] for place in kept], drawn[kept]
        self._host[[chunk.row for chunk in sampled], [chunk.start + chunk.num_tokens for chunk in sampled]] = drawn

    def _fork(self, forks: Sequence[Fork]) -> None:
        """All at once, since beams may change places."""
        rows = np.array([fork.row for fork in forks], dtype=np.int64)
        sources = np.array([fork.source for fork in forks], dtype=np.int64)
        end = max(fork.position for fork in forks)
        self._host[rows, :end] = self._host[sources, :end]
        self._block_tables[rows] = self._block_tables[sources]
        self._params.copy(forks)
        firsts = [self._first_blocks[fork.source] for fork in forks]
        for fork, first in zip(forks, firsts, strict=True):
            self.extend(fork.row, fork.position, fork.tokens)
            self._num_blocks[fork.row], self._first_blocks[fork.row] = fork.kept_blocks, first
            self._append_blocks(fork.row, fork.blocks)

    def room(self, position: int) -> int:
        """Tokens that a row can hold from a position on."""
        return max(0, self._tokens.shape[1] - position)

    def extend(self, row: int, position: int, token_ids: Sequence[int]) -> None:
        """Write known ids into a row, from a position on."""
        self._host[row, position : position + len(token_ids)] = token_ids

    def _append_blocks(self, row: int, blocks: tuple[int, ...]) -> None:
        if not blocks:
            return
        have, table = self._num_blocks[row], self._block_tables[row]
        table[have : have + len(blocks)] = blocks
        first = blocks[0] if have == 0 else self._first_blocks[row]
        consecutive = first >= 0 and blocks == tuple(range(first + have, first + have + len(blocks)))
        self._first_blocks[row] = first if consecutive else -1
        self._num_blocks[row] = have + len(blocks)


def logits_indices(chunks: Sequence[Chunk], ends: Ints) -> Ints:
    """Indices of the tokens that sample, that score, that pool. ends: (chunks,) where each ends among the tokens."""
    logits_indices = [(ends - 1)[[chunk.samples for chunk in chunks]]]
    for end, chunk in zip(ends.tolist(), chunks, strict=True):
        if chunk.scores[0] < chunk.scores[1]:
            first = end - chunk.num_tokens - chunk.start - 1  # index of the token that gives position 0
            logits_indices.append(np.arange(first + chunk.scores[0], first + chunk.scores[1]))
    for end, chunk in zip(ends.tolist(), chunks, strict=True):
        if chunk.pools[0] < chunk.pools[1]:
            first = end - chunk.num_tokens - chunk.start  # index of position 0
            logits_indices.append(np.arange(first + chunk.pools[0], first + chunk.pools[1]))
    return logits_indices[0] if len(logits_indices) == 1 else np.concatenate(logits_indices)
