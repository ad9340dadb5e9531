"""The rows: what the runner knows of each running sequence between steps. Plans change them; nothing else does.

Lengths, block tables and sampling parameters are host arrays, since plans bring them; token ids are on the device,
since sampled ones must not pass through the host before the next step can read them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.core.plan import Chunk, Fork, Plan
from kvasir_runtime.kernels.sample import Draws
from kvasir_runtime.kernels.spans import Spans
from kvasir_runtime.layers.decoder import Batch

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """The sampling half of a step. forbidden: (sample, id) pairs that may not be drawn."""

    draws: Draws
    forbidden: Tensor


class Rows:
    """State of up to max_sequences sequences of up to max_model_len tokens."""

    def __init__(
        self,
        *,
        max_sequences: int,
        max_model_len: int,
        block_size: int,
        eos_token_ids: Sequence[int],
        device: torch.device,
    ) -> None:
        self._block_size = block_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._device = device
        self._tokens = torch.empty((max_sequences, max_model_len + 1), dtype=torch.int32, device=device)
        # The same memory where the device is the host, for whose small arrays numpy is the quicker one.
        self._host: NDArray[np.int32] | None = self._tokens.numpy() if device.type == "cpu" else None
        self._block_tables = np.zeros((max_sequences, -(-max_model_len // block_size)), dtype=np.int64)
        self._num_blocks = [0] * max_sequences
        # First id of a row whose blocks are consecutive ids, else -1: its cache can be read without gathering it.
        self._first_blocks = [-1] * max_sequences
        self._temperature = np.zeros(max_sequences, dtype=np.float32)
        self._top_p = np.ones(max_sequences, dtype=np.float32)
        self._min_p = np.zeros(max_sequences, dtype=np.float32)
        self._top_k = np.zeros(max_sequences, dtype=np.int64)
        self._seed = np.zeros(max_sequences, dtype=np.int64)
        self._stop_token_ids: list[tuple[int, ...]] = [()] * max_sequences

    def apply(self, plan: Plan) -> None:
        """Take in joins, forks, grows and inserts. Leaves need nothing: a row is overwritten when it is used again."""
        for join in plan.joins:
            row, sampling = join.row, join.sampling
            self._tokens[row, : len(join.tokens)] = self._to_device(np.array(join.tokens, dtype=np.int32))
            self._num_blocks[row], self._first_blocks[row] = 0, -1
            self._append_blocks(row, join.blocks)
            self._temperature[row], self._top_p[row] = sampling.temperature, sampling.top_p
            self._top_k[row], self._min_p[row] = sampling.top_k, sampling.min_p
            self._seed[row] = np.array(sampling.seed % 2**64, dtype=np.uint64).astype(np.int64)
            self._stop_token_ids[row] = tuple({*self._eos_token_ids, *sampling.stop_token_ids})
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

    def batch(self, chunks: Sequence[Chunk]) -> Batch:
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
        spans = Spans(
            lens.tolist(),
            kv_lens,
            self._to_device(self._block_tables[rows, :longest]),
            [self._first_blocks[chunk.row] for chunk in chunks],
        )
        device_positions = self._to_device(positions)
        return Batch(
            token_ids=self._ids(token_rows, positions, device_positions),
            positions=device_positions,
            slots=self._to_device(slots),
            spans=spans,
            logit_rows=self._to_device(_wanted(chunks, ends)),
        )

    def _ids(self, rows: Ints, positions: Ints, device_positions: Tensor) -> Tensor:
        if self._host is not None:
            return torch.from_numpy(self._host[rows, positions].astype(np.int64))
        return self._tokens[self._to_device(rows), device_positions].long()

    def scored_ids(self, chunks: Sequence[Chunk]) -> Tensor:
        """(tokens,) int64: the ids that the scoring ones among a step's chunks ask for, in their order."""
        return torch.cat([self._tokens[chunk.row, slice(*chunk.scores)] for chunk in chunks]).long()

    def sampling(self, chunks: Sequence[Chunk]) -> Sampling:
        """How the sampling ones among a step's chunks are drawn."""
        sampled = [chunk for chunk in chunks if chunk.samples]
        rows = np.array([chunk.row for chunk in sampled], dtype=np.int64)
        positions = np.array([chunk.start + chunk.num_tokens for chunk in sampled], dtype=np.int64)
        temperature, top_k = self._temperature[rows], self._top_k[rows]
        top_p, min_p = self._top_p[rows], self._min_p[rows]
        forbidden = [
            (index, token)
            for index, chunk in enumerate(sampled)
            if chunk.min_tokens_left > 0
            for token in self._stop_token_ids[chunk.row]
        ]
        draws = Draws(
            temperature=self._to_device(temperature),
            top_k=self._to_device(top_k),
            top_p=self._to_device(top_p),
            min_p=self._to_device(min_p),
            seed=self._to_device(self._seed[rows]),
            position=self._to_device(positions),
            all_greedy=not temperature.any(),
            any_filter=bool(((temperature > 0) & ((top_k > 0) | (top_p < 1) | (min_p > 0))).any()),
        )
        pairs = np.array(forbidden, dtype=np.int64).reshape(-1, 2)
        return Sampling(draws=draws, forbidden=self._to_device(pairs))

    def greedy(self, sampled: Sequence[Chunk]) -> bool:
        """Whether all chunks that sample want the most likely token, and may have any."""
        temperature = self._temperature[[chunk.row for chunk in sampled]]
        return not temperature.any() and all(chunk.min_tokens_left <= 0 for chunk in sampled)

    def append(self, sampled: Sequence[Chunk], ids: Tensor) -> None:
        """Write the drawn id of each chunk that samples behind the tokens of its row."""
        rows, positions = [chunk.row for chunk in sampled], [chunk.start + chunk.num_tokens for chunk in sampled]
        if self._host is not None:
            self._host[rows, positions] = ids.numpy()
            return
        places = self._to_device(np.array(rows)), self._to_device(np.array(positions))
        self._tokens[places] = ids.to(torch.int32)

    def _fork(self, forks: Sequence[Fork]) -> None:
        """All at once, since beams may change places. Only known tokens move, and they stay on the device."""
        rows = np.array([fork.row for fork in forks], dtype=np.int64)
        sources = np.array([fork.source for fork in forks], dtype=np.int64)
        end = max(fork.position for fork in forks)
        self._tokens[self._to_device(rows), :end] = self._tokens[self._to_device(sources), :end]
        lens = np.array([len(fork.tokens) for fork in forks])
        positions = np.concatenate([fork.position + np.arange(len(fork.tokens)) for fork in forks])
        ids = np.array([token for fork in forks for token in fork.tokens], dtype=np.int32)
        places = self._to_device(np.repeat(rows, lens)), self._to_device(positions)
        self._tokens[places] = self._to_device(ids)
        for array in (self._temperature, self._top_p, self._min_p, self._top_k, self._seed, self._block_tables):
            array[rows] = array[sources]
        stops = [self._stop_token_ids[fork.source] for fork in forks]
        firsts = [self._first_blocks[fork.source] for fork in forks]
        for fork, stop_token_ids, first in zip(forks, stops, firsts, strict=True):
            self._stop_token_ids[fork.row] = stop_token_ids
            self._num_blocks[fork.row], self._first_blocks[fork.row] = fork.kept_blocks, first
            self._append_blocks(fork.row, fork.blocks)

    def room(self, position: int) -> int:
        """Tokens that a row can hold from a position on."""
        return max(0, self._tokens.shape[1] - position)

    def extend(self, row: int, position: int, token_ids: Sequence[int]) -> None:
        """Write known ids into a row, from a position on."""
        ids = self._to_device(np.array(token_ids, dtype=np.int32))
        self._tokens[row, position : position + len(token_ids)] = ids

    def _append_blocks(self, row: int, blocks: tuple[int, ...]) -> None:
        if not blocks:
            return
        have, table = self._num_blocks[row], self._block_tables[row]
        table[have : have + len(blocks)] = blocks
        first = blocks[0] if have == 0 else self._first_blocks[row]
        consecutive = first >= 0 and blocks == tuple(range(first + have, first + have + len(blocks)))
        self._first_blocks[row] = first if consecutive else -1
        self._num_blocks[row] = have + len(blocks)

    def _to_device(self, array: NDArray[np.generic]) -> Tensor:
        """Without waiting for the device, as torch.tensor(..., device=...) would."""
        tensor = torch.from_numpy(array)
        return tensor if self._host is not None else tensor.to(self._device, non_blocking=True)


def _wanted(chunks: Sequence[Chunk], ends: Ints) -> Ints:
    """Indices of the tokens that sample, that score, that pool. ends: (chunks,) where each ends among the tokens."""
    wanted = [(ends - 1)[[chunk.samples for chunk in chunks]]]
    for end, chunk in zip(ends.tolist(), chunks, strict=True):
        if chunk.scores[0] < chunk.scores[1]:
            first = end - chunk.num_tokens - chunk.start - 1  # index of the token that gives position 0
            wanted.append(np.arange(first + chunk.scores[0], first + chunk.scores[1]))
    for end, chunk in zip(ends.tolist(), chunks, strict=True):
        if chunk.pools[0] < chunk.pools[1]:
            first = end - chunk.num_tokens - chunk.start  # index of position 0
            wanted.append(np.arange(first + chunk.pools[0], first + chunk.pools[1]))
    return wanted[0] if len(wanted) == 1 else np.concatenate(wanted)
