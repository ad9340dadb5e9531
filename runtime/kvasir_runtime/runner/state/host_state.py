"""Rows where the device is the host: arrays that plans write and steps read, without a copy in between."""

import mmap
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, Fork, StepPlan
from kvasir_runtime.kernels import host_memory
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.sample import Draws
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.runner.state.row_sampling_params import RowSamplingParams
from kvasir_runtime.runner.state.row_state import (
    AppendPositions,
    Ints,
    ModelInput,
    SamplingMetadata,
    logits_indices,
    token_types,
)

_IDS_OF_A_PAGE: Final = mmap.PAGESIZE // 4


class HostRowState:
    """Implements `RowState` for up to max_sequences sequences of up to max_model_len tokens."""

    def __init__(
        self,
        *,
        max_sequences: int,
        max_model_len: int,
        block_size: int,
        num_groups: int,
        eos_token_ids: Sequence[int],
    ) -> None:
        """num_groups: cache groups, each with a block table for every row."""
        self._block_size = block_size
        # A step that is launched behind a sample that is deferred looks up what is there: never anything but an id.
        # Rows begin at pages and take memory as they are written; and numpy is faster for small arrays.
        stride = -(-(max_model_len + 1) // _IDS_OF_A_PAGE) * _IDS_OF_A_PAGE
        self._host: NDArray[np.int32] = host_memory.zeros((max_sequences, stride), np.int32)[:, : max_model_len + 1]
        self._tokens = torch.from_numpy(self._host)
        columns = -(-max_model_len // block_size)
        self._block_tables: Ints = host_memory.zeros((num_groups, max_sequences, columns), np.int64)
        self._num_blocks = [[0] * max_sequences for _ in range(num_groups)]
        self._params = RowSamplingParams(max_sequences, eos_token_ids)
        self._second_from: Ints = np.zeros(max_sequences, dtype=np.int64)

    def apply(self, plan: StepPlan) -> None:
        """As in `RowState`, like the methods below."""
        for join in plan.joins:
            self._host[join.row, : len(join.tokens)] = join.tokens
            for group, table in enumerate(join.tables):
                self._num_blocks[group][join.row] = 0
                self._append_blocks(join.row, table, group)
            self._params.assign(join.row, join.sampling)
            self._second_from[join.row] = 0 if join.pooling is None else join.pooling.second_from
        if plan.forks:
            self._fork(plan.forks)
        for grow in plan.grows:
            self._append_blocks(grow.row, grow.blocks, grow.group)
        for insert in plan.inserts:
            self.write_tokens(insert.row, insert.position, insert.tokens)
        for chunk in plan.chunks:
            if chunk.drafts:
                self.write_tokens(chunk.row, chunk.start + chunk.num_tokens - len(chunk.drafts), chunk.drafts)

    @property
    def tokens(self) -> Tensor:
        """(rows, positions) int32: the known ids of every row."""
        return self._tokens

    @property
    def arrays(self) -> tuple[NDArray[np.int32], Ints, NDArray[np.void]]:
        """Arrays that never move: (rows, positions) known ids, (groups, rows, blocks) ids of blocks, (rows,) DRAW."""
        return self._host, self._block_tables, self._params.records

    @property
    def num_bytes(self) -> int:
        """No memory of a device."""
        return 0

    def model_input(self, chunks: Sequence[Chunk]) -> ModelInput:
        """The query tokens of a step's chunks, in order."""
        rows = np.array([chunk.row for chunk in chunks])
        lens = np.array([chunk.num_tokens for chunk in chunks])
        starts = np.array([chunk.start for chunk in chunks])
        ends = np.cumsum(lens)
        token_rows, positions = rows, starts
        if ends[-1] > len(chunks):
            token_rows = np.repeat(rows, lens)
            positions = np.arange(ends[-1]) + np.repeat(starts - ends + lens, lens)
        # Indexed behind a slice numpy may lay out the groups last, and kernels require the slots of each in a row.
        blocks = np.ascontiguousarray(self._block_tables[:, token_rows, positions // self._block_size])
        slots = blocks * self._block_size + positions % self._block_size
        kv_lens = (starts + lens).tolist()
        longest = -(-max(kv_lens) // self._block_size)
        first, *others = torch.from_numpy(self._block_tables[:, rows, :longest]).unbind(0)
        attn_metadata = AttentionMetadata(lens.tolist(), kv_lens, first)
        types = token_types(chunks, self._second_from)
        return ModelInput(
            batch=Batch(
                token_ids=torch.from_numpy(self._host[token_rows, positions].astype(np.int64)),
                positions=torch.from_numpy(positions),
                slots=torch.from_numpy(slots),
                attn_metadata=(attn_metadata, *(attn_metadata.with_tables(tables) for tables in others)),
                logit_rows=torch.from_numpy(logits_indices(chunks, ends)),
                token_types=None if types is None else torch.from_numpy(types),
            )
        )

    def prompt_logprob_ids(self, chunks: Sequence[Chunk]) -> Tensor:
        """(tokens,) int64: the ids whose logprobs are wanted."""
        return torch.cat([self._tokens[chunk.row, slice(*chunk.scores)] for chunk in chunks]).long()

    def sampling_metadata(
        self,
        sampling_chunks: Sequence[Chunk],
        positions: AppendPositions | None,  # noqa: ARG002 - rows on the host know them
    ) -> SamplingMetadata:
        """How the chunks that sample are sampled."""
        rows, params = np.array([chunk.row for chunk in sampling_chunks], dtype=np.int64), self._params
        ends = np.array([chunk.start + chunk.num_tokens for chunk in sampling_chunks], dtype=np.int64)
        draws = Draws(
            temperature=torch.from_numpy(params.temperature[rows]),
            top_k=torch.from_numpy(params.top_k[rows].astype(np.int64)),
            top_p=torch.from_numpy(params.top_p[rows]),
            min_p=torch.from_numpy(params.min_p[rows]),
            seed=torch.from_numpy(params.seed[rows]),
            position=torch.from_numpy(ends),
            all_greedy=params.zero_temperature(sampling_chunks),
            any_filter=params.any_filtered(sampling_chunks),
        )
        pairs = params.forbidden(sampling_chunks)
        return SamplingMetadata(draws=draws, forbidden=torch.tensor(pairs) if pairs else None)

    def all_greedy(self, sampling_chunks: Sequence[Chunk]) -> bool:
        """Whether all chunks that sample take the most likely token, and none is forbidden."""
        return self._params.all_greedy(sampling_chunks)

    def any_filtered(self, sampling_chunks: Sequence[Chunk]) -> bool:
        """Whether one that samples at random has top_k, top_p or min_p."""
        return self._params.any_filtered(sampling_chunks)

    def append(
        self,
        sampling_chunks: Sequence[Chunk],
        ids: Tensor,
        positions: AppendPositions | None,  # noqa: ARG002 - rows on the host know them
        dropped: Collection[int] = (),
    ) -> None:
        """Append the sampled id of each chunk that samples to its row, except those whose index is in dropped."""
        sampled, chunks = np.maximum(ids.numpy(), 0), sampling_chunks  # argmax.INVALID is no id to look up
        if dropped:
            kept = [index for index in range(len(chunks)) if index not in dropped]
            sampled, chunks = sampled[kept], [chunks[index] for index in kept]
        self._host[[chunk.row for chunk in chunks], [chunk.start + chunk.num_tokens for chunk in chunks]] = sampled

    def _fork(self, forks: Sequence[Fork]) -> None:
        """All at once, since beams may exchange rows."""
        rows = np.array([fork.row for fork in forks], dtype=np.int64)
        sources = np.array([fork.source for fork in forks], dtype=np.int64)
        end = max(fork.position for fork in forks)
        self._host[rows, :end] = self._host[sources, :end]
        self._block_tables[:, rows] = self._block_tables[:, sources]
        self._params.copy(forks)
        for fork in forks:
            self.write_tokens(fork.row, fork.position, fork.tokens)
            for num_blocks in self._num_blocks:
                num_blocks[fork.row] = fork.kept_blocks

    def free_positions(self, position: int) -> int:
        """Tokens that a row can hold from a position on."""
        return max(0, self._tokens.shape[1] - position)

    def write_tokens(self, row: int, position: int, token_ids: Sequence[int]) -> None:
        """Write known ids into a row, from a position on."""
        self._host[row, position : position + len(token_ids)] = token_ids

    def _append_blocks(self, row: int, blocks: tuple[int, ...], group: int) -> None:
        """Blocks that are not there, -1, are never read; 0 keeps addresses that are computed of them in the cache."""
        have = self._num_blocks[group][row]
        self._block_tables[group, row, have : have + len(blocks)] = np.maximum(blocks, 0)
        self._num_blocks[group][row] = have + len(blocks)
