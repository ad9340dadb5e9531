"""Rows on a device that is not the host: all that a step needs of a sequence is there, at fixed addresses.

Plans arrive as one packed copy a step. Lengths and sampled ids are updated on the device alone, so a step can be
launched before the one before it has finished, and a captured step needs only the ids of its rows from the host. One
row belongs to no sequence: padding is computed there, in a block of its own, and never leaves position 0.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, Fork, Join, StepPlan
from kvasir_runtime.kernels.attention_metadata import AttentionMetadata
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.sample import Draws
from kvasir_runtime.kernels.step_inputs import StepInputs
from kvasir_runtime.layers.batch import Batch
from kvasir_runtime.runner.state.device_stream import DeviceStream
from kvasir_runtime.runner.state.host_to_device_batch import HostToDeviceBatch
from kvasir_runtime.runner.state.row_sampling_params import RowSamplingParams
from kvasir_runtime.runner.state.row_state import (
    AppendPositions,
    Ints,
    ModelInput,
    SamplingMetadata,
    logits_indices,
    token_types,
)

_PARAMETERS: Final = ("temperature", "top_p", "min_p", "top_k")


class DeviceRowState:
    """Implements `RowState`. null_block: a block of the cache that no plan names. num_groups: as in `HostRowState`."""

    def __init__(
        self,
        *,
        max_sequences: int,
        max_model_len: int,
        block_size: int,
        num_groups: int,
        eos_token_ids: Sequence[int],
        null_block: int,
        ops: Ops,
        stream: DeviceStream,
    ) -> None:
        self.padding_row = max_sequences
        self._ops, self._stream, self._block_size = ops, stream, block_size
        self._params = RowSamplingParams(max_sequences, eos_token_ids)
        self._upload_batch = HostToDeviceBatch(stream)
        num_rows, length, columns = max_sequences + 1, max_model_len + 1, -(-max_model_len // block_size)
        tables = num_groups * num_rows * columns
        sizes = (2 * num_rows, num_rows * length, tables, num_rows, *(num_rows for _ in _PARAMETERS))
        self._offsets = np.cumsum((0, *sizes)).tolist()
        self._memory = torch.zeros(self._offsets[-1], dtype=torch.int32, device=stream.device)
        parts: tuple[Tensor, ...] = self._memory.split(sizes)
        self._seed = parts[0].view(torch.int64)
        self._tokens: Tensor = parts[1].view(num_rows, length)
        self._tables: Tensor = parts[2].view(num_groups, num_rows, columns)
        self._lens = parts[3]
        self._temperature, self._top_p, self._min_p = (part.view(torch.float32) for part in parts[4:7])
        self._top_k = parts[7]
        self._tables[:, self.padding_row] = null_block
        self._second_from: Ints = np.zeros(num_rows, dtype=np.int64)
        # What the host knows of the device: blocks in the tables, and lengths once all that is enqueued has run.
        self._num_blocks = [[0] * num_rows for _ in range(num_groups)]
        self._known_lens = [0] * num_rows

    @property
    def num_bytes(self) -> int:
        """Device memory that the rows take."""
        return self._memory.numel() * self._memory.element_size()

    @property
    def tokens(self) -> Tensor:
        """(rows, positions) int32: the known ids of every row."""
        return self._tokens

    def apply(self, plan: StepPlan) -> None:
        """Apply joins, forks, grows and inserts; they are sent with the next batch."""
        for join in plan.joins:
            self._join(join)
        if plan.forks:
            self._fork(plan.forks)
        for grow in plan.grows:
            self._append_blocks(grow.row, grow.blocks, grow.group)
        for insert in plan.inserts:
            self.write_tokens(insert.row, insert.position, insert.tokens)

    def model_input(self, chunks: Sequence[Chunk]) -> ModelInput:
        """The query tokens of a step's chunks, in order."""
        rows = np.array([chunk.row for chunk in chunks], dtype=np.int64)
        lens = np.array([chunk.num_tokens for chunk in chunks])
        ends = np.cumsum(lens)
        self._write_starts(chunks)
        wanted, sampling = logits_indices(chunks, ends), np.flatnonzero([chunk.samples for chunk in chunks])
        starts = np.concatenate(([0], ends)).astype(np.int32)
        device_rows, logit_rows, indices, starts_there = self._upload_batch.send(
            self._memory, (rows, wanted, sampling), (starts,)
        )
        longest = int(lens.max())
        columns = -(-max(chunk.start + chunk.num_tokens for chunk in chunks) // self._block_size)
        made = self._step_inputs(device_rows, starts_there, int(ends[-1]), longest, self._tables[:, :, :columns])
        positions = AppendPositions(device_rows, made.kv_lens)
        if len(sampling) < len(chunks):
            positions = AppendPositions(device_rows.index_select(0, indices), made.kv_lens.index_select(0, indices))
        types = token_types(chunks, self._second_from)
        host_lens = lens.tolist(), [chunk.start + chunk.num_tokens for chunk in chunks]
        batch = _batch(made, starts_there, longest, logit_rows, host_lens)
        if types is not None:
            batch = replace(batch, token_types=self._stream.upload(types))
        return ModelInput(batch, positions)

    def captured_input(self, rows: Tensor, starts: Tensor) -> ModelInput:
        """The input of a step in which each row computes one token and samples; nothing is read from the host.

        rows: (n,) int64, padding_row for padding; starts: (n + 1,) int32, 0 to n.
        """
        made = self._step_inputs(rows, starts, rows.shape[0], 1, self._tables)
        return ModelInput(_batch(made, starts, 1, None), AppendPositions(rows, made.kv_lens))

    def captured_mixed_input(self, rows: Tensor, starts: Tensor, num_tokens: int) -> ModelInput:
        """The input of a step in which rows compute any number of tokens; nothing is read from the host.

        rows: (2, n) int64, those that compute, and those that the last token of each gives a sample for, padding_row
        where it gives none; starts: (n + 1,) int32, from 0 to num_tokens: padding_row has the tokens that no other has.
        """
        made = self._step_inputs(rows[0], starts, num_tokens, num_tokens, self._tables)
        last = (starts[1:] - 1).clamp_min(0).long()
        ends = torch.where(rows[1] < self.padding_row, made.kv_lens, 1)
        return ModelInput(_batch(made, starts, num_tokens, last), AppendPositions(rows[1], ends))

    def prepare_replay(self, chunks: Sequence[Chunk]) -> None:
        """Send what plans wrote before a captured step of these chunks is replayed, which no model_input precedes."""
        self._write_starts(chunks)
        self._flush()

    def _write_starts(self, chunks: Sequence[Chunk]) -> None:
        """Write where chunks begin, for those whose row has another length on the device."""
        for chunk in chunks:
            if self._known_lens[chunk.row] != chunk.start:
                self._upload_batch.write(chunk.row, self._offsets[3] + chunk.row, (chunk.start,))
                self._known_lens[chunk.row] = chunk.start

    def _flush(self) -> None:
        if self._upload_batch:
            self._upload_batch.send(self._memory)

    def prompt_logprob_ids(self, chunks: Sequence[Chunk]) -> Tensor:
        """(tokens,) int64: the ids whose logprobs are wanted."""
        return torch.cat([self._tokens[chunk.row, slice(*chunk.scores)] for chunk in chunks]).long()

    def sampling_metadata(
        self, sampling_chunks: Sequence[Chunk], positions: AppendPositions | None
    ) -> SamplingMetadata:
        """How the chunks that sample are sampled."""
        assert positions is not None
        params, pairs = self._params, self._params.forbidden(sampling_chunks)
        draws = self.draws(
            positions,
            all_greedy=params.zero_temperature(sampling_chunks),
            any_filter=params.any_filtered(sampling_chunks),
        )
        forbidden = self._stream.upload(np.array(pairs, dtype=np.int64)) if pairs else None
        return SamplingMetadata(draws=draws, forbidden=forbidden)

    def draws(self, positions: AppendPositions, *, all_greedy: bool, any_filter: bool) -> Draws:
        """Sampling parameters of a step's rows, read on the device; the flags come from the host and save work."""
        rows = positions.rows
        return Draws(
            temperature=self._temperature.index_select(0, rows),
            top_k=self._top_k.index_select(0, rows).long(),
            top_p=self._top_p.index_select(0, rows),
            min_p=self._min_p.index_select(0, rows),
            seed=self._seed.index_select(0, rows),
            position=positions.ends.long(),
            all_greedy=all_greedy,
            any_filter=any_filter,
        )

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
        positions: AppendPositions | None,
        dropped: Collection[int] = (),
    ) -> None:
        """Append the sampled id of each chunk that samples to its row, except those whose index is in dropped."""
        assert positions is not None
        if dropped:
            kept = [self.padding_row if index in dropped else chunk.row for index, chunk in enumerate(sampling_chunks)]
            rows = self._stream.upload(np.array(kept, dtype=np.int64))
            positions = AppendPositions(rows, torch.where(rows < self.padding_row, positions.ends, 1))
        self.append_captured(ids, positions)
        self.advance([chunk for index, chunk in enumerate(sampling_chunks) if index not in dropped])

    def append_captured(self, ids: Tensor, positions: AppendPositions) -> None:
        """As append, of a step that is captured; `advance` follows each replay."""
        self._ops.append_ids(ids, positions.rows, positions.ends, self._tokens, self._lens)

    def advance(self, sampling_chunks: Sequence[Chunk]) -> None:
        """Note that the rows of these chunks end there on the device."""
        for chunk in sampling_chunks:
            self._known_lens[chunk.row] = chunk.start + chunk.num_tokens

    def free_positions(self, position: int) -> int:
        """Tokens that a row can hold from a position on."""
        return max(0, self._tokens.shape[1] - position)

    def write_tokens(self, row: int, position: int, token_ids: Sequence[int]) -> None:
        """Write known ids into a row, from a position on; they are sent with the next batch."""
        self._upload_batch.write(row, self._offsets[1] + row * self._tokens.shape[1] + position, token_ids)

    def _step_inputs(self, rows: Tensor, starts: Tensor, num_tokens: int, longest: int, tables: Tensor) -> StepInputs:
        rest = (self._lens, self._tokens, tables, self._block_size)
        return self._ops.step_inputs(rows, starts, *rest, num_tokens, longest)

    def _join(self, join: Join) -> None:
        row, sampling = join.row, join.sampling
        self._upload_batch.discard_row(row)
        self.write_tokens(row, 0, join.tokens)
        for group, table in enumerate(join.tables):
            self._num_blocks[group][row] = 0
            self._append_blocks(row, table, group)
        self._params.assign(row, sampling)
        self._second_from[row] = 0 if join.pooling is None else join.pooling.second_from
        self._known_lens[row] = join.computed_tokens
        seed = np.array([sampling.seed % 2**64], dtype=np.uint64).view(np.int32)
        floats = np.array([sampling.temperature, sampling.top_p, sampling.min_p], dtype=np.float32).view(np.int32)
        self._upload_batch.write(row, self._offsets[0] + 2 * row, seed)
        self._upload_batch.write(row, self._offsets[3] + row, (join.computed_tokens,))
        for offset, value in zip(self._offsets[4:], (*floats.tolist(), sampling.top_k), strict=False):
            self._upload_batch.write(row, offset + row, (value,))

    def _fork(self, forks: Sequence[Fork]) -> None:
        """All at once, since beams may exchange rows. Only known tokens are copied, on the device."""
        self._flush()
        pairs = np.array([(fork.row, fork.source) for fork in forks], dtype=np.int64)
        rows, sources = self._stream.upload(pairs).unbind(1)
        end = max(fork.position for fork in forks)
        self._tokens[rows, :end] = self._tokens[sources, :end]
        self._tables[:, rows] = self._tables[:, sources]
        for column in (self._temperature, self._top_p, self._min_p, self._top_k, self._seed):
            column[rows] = column[sources]
        self._params.copy(forks)
        for fork in forks:
            self.write_tokens(fork.row, fork.position, fork.tokens)
            for num_blocks in self._num_blocks:
                num_blocks[fork.row] = fork.kept_blocks
            self._known_lens[fork.row] = -1  # written by the next batch

    def _append_blocks(self, row: int, blocks: Sequence[int], group: int) -> None:
        """Blocks that are not there, -1, are never read; 0 keeps addresses that are computed of them in the cache."""
        have, (_, num_rows, columns) = self._num_blocks[group][row], self._tables.shape
        place = self._offsets[2] + (group * num_rows + row) * columns + have
        self._upload_batch.write(row, place, np.maximum(np.asarray(blocks, dtype=np.int32), 0))
        self._num_blocks[group][row] = have + len(blocks)


def _batch(
    made: StepInputs,
    starts: Tensor,
    longest_query: int,
    logit_rows: Tensor | None,
    host_lens: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Batch:
    first, *others = made.block_tables.unbind(0)
    attn_metadata = AttentionMetadata.on_device(
        starts, made.kv_lens, first, longest_query=longest_query, host_lens=host_lens
    )
    return Batch(
        token_ids=made.token_ids,
        positions=made.positions,
        slots=made.slots,
        attn_metadata=(attn_metadata, *(attn_metadata.with_tables(tables) for tables in others)),
        logit_rows=logit_rows,
    )
