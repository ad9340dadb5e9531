"""Steps of rows on the host in which everybody draws the likeliest token: one call begins them, one ends them.

Called by `runner.greedy_fast_path`. The C++ makes a step's inputs of the rows themselves and puts what it drew behind
them; the dozens of small operations that do this elsewhere take as long as a tenth of a lone stream's step.
"""

import ctypes
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.kernels.cpu.step import DecoderStep

_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64
_WORK: Final = ("token_ids", "positions", "slots")


class RowsStruct(ctypes.Structure):
    """kvasir::StepRows."""

    _fields_ = (
        ("count", _COUNT),
        ("chunks", _POINTER),
        ("tokens", _POINTER),
        ("token_stride", _COUNT),
        ("tables", _POINTER),
        ("table_stride", _COUNT),
        ("token_ids", _POINTER),
        ("positions", _POINTER),
        ("slots", _POINTER),
        ("wanted", _POINTER),
        ("likeliest", _POINTER),
        ("lens", _POINTER),
        ("blocks", _POINTER),
        ("out", _POINTER),
        ("logits", _POINTER),
        ("ticks", _POINTER),
    )


class RowSteps:
    """tokens: (rows, positions) int32, known ids of every row. tables: (rows, blocks) int64. Both stay where they are.

    max_tokens: of a step.
    """

    def __init__(
        self, step: DecoderStep, tokens: NDArray[np.int32], tables: NDArray[np.int64], max_tokens: int
    ) -> None:
        """Raises ValueError where the step does not compute logits itself."""
        if not step.head_rows:
            raise ValueError("the head is not packed")
        self._step = step
        self._max_tokens = max_tokens
        self._begin, self._finish = step.of_rows(RowsStruct)
        num_rows = len(tokens)
        self._chunks = np.empty((num_rows, 3), dtype=np.int64)
        self._likeliest = np.empty(num_rows, dtype=np.int64)
        work = {name: np.empty(max_tokens, dtype=np.int64) for name in _WORK}
        each = {"wanted": np.empty(num_rows, dtype=np.int64), "likeliest": self._likeliest}
        lens, blocks = np.empty((2, num_rows), dtype=np.int32), np.empty(tables.shape, dtype=np.int64)
        self._kept = (tokens, tables, work, each, lens, blocks)
        self._results: tuple[Tensor, ...] = ()
        self._room = 0
        self._struct = RowsStruct(
            chunks=self._chunks.ctypes.data,
            tokens=tokens.ctypes.data,
            token_stride=tokens.shape[1],
            tables=tables.ctypes.data,
            table_stride=tables.shape[1],
            **{name: array.ctypes.data for name, array in (work | each).items()},
            lens=lens.ctypes.data,
            blocks=blocks.ctypes.data,
        )
        self._pointer = ctypes.byref(self._struct)

    def begin(self, chunks: Sequence[tuple[int, int, int]], cache: Tensor) -> bool:
        """Let the other threads begin: of each sequence its row, the first position to compute, and how many.

        False where that is more than max_tokens. After a step that was begun and not finished its tokens are lost.
        """
        count = len(chunks)
        if sum(chunk[2] for chunk in chunks) > self._max_tokens:
            return False
        self._step.ready(cache)
        self._chunks[:count] = chunks
        if count > self._room:
            self._room = count
            self._results = self._step.room(count)
            self._struct.out, self._struct.logits = (one.data_ptr() for one in self._results)
        self._struct.count = count
        self._struct.ticks = self._step.ticks
        self._begin(self._step.model, self._pointer)
        return True

    def finish(self) -> list[int]:
        """Take part until it is computed; the drawn id of each sequence, which is behind its row by then."""
        self._finish(self._pointer)
        drawn: list[int] = self._likeliest[: self._struct.count].tolist()
        return drawn
