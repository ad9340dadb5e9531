"""What each row asks of the draw, as the host knows it: enough to choose how to draw without asking the device."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from kvasir_runtime.core.plan import Chunk, Fork
from kvasir_runtime.wire import SamplingConfig

_ARRAYS: Final = ("temperature", "top_p", "min_p", "top_k", "seed")


class RowSamplingParams:
    """By row: temperature, top_p, min_p: float32; top_k, seed: int64, the seed's bits as a signed number."""

    def __init__(self, num_rows: int, eos_token_ids: Sequence[int]) -> None:
        self._eos_token_ids = tuple(eos_token_ids)
        self.temperature = np.zeros(num_rows, dtype=np.float32)
        self.top_p = np.ones(num_rows, dtype=np.float32)
        self.min_p = np.zeros(num_rows, dtype=np.float32)
        self.top_k = np.zeros(num_rows, dtype=np.int64)
        self.seed = np.zeros(num_rows, dtype=np.int64)
        self._stop_token_ids: list[tuple[int, ...]] = [()] * num_rows
        self._warm: set[int] = set()  # rows with a temperature; for few rows a set is quicker than an array

    def set(self, row: int, sampling: SamplingConfig) -> None:
        """A sequence takes a row."""
        self.temperature[row], self.top_p[row] = sampling.temperature, sampling.top_p
        self.top_k[row], self.min_p[row] = sampling.top_k, sampling.min_p
        self.seed[row] = np.array(sampling.seed % 2**64, dtype=np.uint64).astype(np.int64)
        self._note_warmth(row)
        self._stop_token_ids[row] = tuple({*self._eos_token_ids, *sampling.stop_token_ids})

    def copy(self, forks: Sequence[Fork]) -> None:
        """Rows that become continuations of others, all at once."""
        rows, sources = [fork.row for fork in forks], [fork.source for fork in forks]
        for name in _ARRAYS:
            array = getattr(self, name)
            array[rows] = array[sources]
        stops = [self._stop_token_ids[source] for source in sources]
        for row, stop_token_ids in zip(rows, stops, strict=True):
            self._stop_token_ids[row] = stop_token_ids
            self._note_warmth(row)

    def _note_warmth(self, row: int) -> None:
        (self._warm.add if self.temperature[row] else self._warm.discard)(row)

    def greedy(self, sampled: Sequence[Chunk]) -> bool:
        """Whether all chunks that sample want the most likely token, and may have any."""
        return self.zero_temperature(sampled) and all(chunk.min_tokens_left <= 0 for chunk in sampled)

    def zero_temperature(self, sampled: Sequence[Chunk]) -> bool:
        """Whether all want the most likely token of those that they may have."""
        return not self._warm or not any(chunk.row in self._warm for chunk in sampled)

    def filtered(self, sampled: Sequence[Chunk]) -> bool:
        """Whether one that draws at random narrows what may be drawn."""
        rows = [chunk.row for chunk in sampled]
        narrow = (self.top_k[rows] > 0) | (self.top_p[rows] < 1) | (self.min_p[rows] > 0)
        return bool(((self.temperature[rows] > 0) & narrow).any())

    def forbidden(self, sampled: Sequence[Chunk]) -> list[tuple[int, int]]:
        """(sample, id) pairs that may not be drawn: EOS and stop ids of answers that are too short to end."""
        return [
            (index, token)
            for index, chunk in enumerate(sampled)
            if chunk.min_tokens_left > 0
            for token in self._stop_token_ids[chunk.row]
        ]
