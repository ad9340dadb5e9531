"""Sampling parameters of every row, on the host: enough to choose how to sample without reading from the device."""

from collections.abc import Sequence

import numpy as np

from kvasir_runtime.core.plan import Chunk, Fork
from kvasir_runtime.kernels.sample import DRAW, MOST_TOP_K
from kvasir_runtime.wire import SamplingConfig


class RowSamplingParams:
    """records: (rows,) DRAW without positions, and its columns. seed: the bits of a request's as a signed number."""

    def __init__(self, num_rows: int, eos_token_ids: Sequence[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self.records = np.zeros(num_rows, dtype=DRAW)
        self.records["top_p"] = 1
        self.temperature, self.top_p = self.records["temperature"], self.records["top_p"]
        self.min_p, self.top_k, self.seed = self.records["min_p"], self.records["top_k"], self.records["seed"]
        self._stop_token_ids: list[tuple[int, ...]] = [()] * num_rows
        self._with_temperature: set[int] = set()  # rows; for few of them a set is faster than an array

    def assign(self, row: int, sampling: SamplingConfig) -> None:
        """Store the parameters of the sequence that takes a row."""
        self.temperature[row], self.top_p[row] = sampling.temperature, sampling.top_p
        self.top_k[row], self.min_p[row] = min(sampling.top_k, MOST_TOP_K), sampling.min_p
        self.seed[row] = np.array(sampling.seed % 2**64, dtype=np.uint64).astype(np.int64)
        self._note_temperature(row)
        self._stop_token_ids[row] = tuple({*self._eos_token_ids, *sampling.stop_token_ids})

    def copy(self, forks: Sequence[Fork]) -> None:
        """Copy the parameters of rows that others continue, all at once."""
        rows, sources = [fork.row for fork in forks], [fork.source for fork in forks]
        self.records[rows] = self.records[sources]
        stops = [self._stop_token_ids[source] for source in sources]
        for row, stop_token_ids in zip(rows, stops, strict=True):
            self._stop_token_ids[row] = stop_token_ids
            self._note_temperature(row)

    def _note_temperature(self, row: int) -> None:
        (self._with_temperature.add if self.temperature[row] else self._with_temperature.discard)(row)

    def all_greedy(self, sampling_chunks: Sequence[Chunk]) -> bool:
        """Whether all chunks that sample take the most likely token, and none is forbidden."""
        return self.zero_temperature(sampling_chunks) and all(chunk.min_tokens_left <= 0 for chunk in sampling_chunks)

    def zero_temperature(self, sampling_chunks: Sequence[Chunk]) -> bool:
        """Whether all take the most likely token of those that are not forbidden."""
        return not self._with_temperature or not any(chunk.row in self._with_temperature for chunk in sampling_chunks)

    def any_filtered(self, sampling_chunks: Sequence[Chunk]) -> bool:
        """Whether one that samples at random has top_k, top_p or min_p."""
        rows = [chunk.row for chunk in sampling_chunks]
        filtered = (self.top_k[rows] > 0) | (self.top_p[rows] < 1) | (self.min_p[rows] > 0)
        return bool(((self.temperature[rows] > 0) & filtered).any())

    def forbidden(self, sampling_chunks: Sequence[Chunk]) -> list[tuple[int, int]]:
        """(sample, id) pairs that may not be sampled: EOS and stop ids of answers below their min_tokens."""
        return [
            (index, token)
            for index, chunk in enumerate(sampling_chunks)
            if chunk.min_tokens_left > 0
            for token in self._stop_token_ids[chunk.row]
        ]
