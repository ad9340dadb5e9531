"""What a step brings to the device, packed so that it travels in one copy: writes to the rows, and tables of the step.

Filled by `devicerows`, emptied by ship(); a packet never knows what its numbers mean.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, int64

from kvasir_runtime.runner.queues import Queue

Ints = NDArray[np.int32]

_ALIGNED = 4
"""Numbers of 16 bytes: Triton compiles a kernel anew for a pointer that begins elsewhere."""


class Packet:
    """Writes into one flat tensor of int32, by places, and arrays that are wanted on the device beside them."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._writes: list[tuple[int, int, Ints]] = []

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._writes)

    def write(self, row: int, place: int, values: Sequence[int] | Ints) -> None:
        """Values for the places from one on. row: whose they are, for forget()."""
        if len(values):
            self._writes.append((row, place, np.asarray(values, dtype=np.int32)))

    def forget(self, row: int) -> None:
        """Nothing that was to be written for a row counts any more: somebody else takes it."""
        if self._writes:
            self._writes = [write for write in self._writes if write[0] != row]

    def ship(self, target: Tensor, wide: Sequence[NDArray[np.int64]] = (), narrow: Sequence[Ints] = ()) -> list[Tensor]:
        """Send everything and make the writes to the target, no place twice; the arrays, as given, on the device.

        There must be something to send.
        """
        places, values = self._take()
        arrays = [array.view(np.int32) for array in (places, *wide)] + [values, *narrow]
        padded = [-(-array.size // _ALIGNED) * _ALIGNED for array in arrays]
        packed = np.zeros(sum(padded), dtype=np.int32)
        ends = np.cumsum(padded).tolist()
        starts = [end - size for end, size in zip(ends, padded, strict=True)]
        for array, start in zip(arrays, starts, strict=True):
            packed[start : start + array.size] = array
        sent = self._queue.upload(packed)
        shipped = [sent[start : start + array.size] for array, start in zip(arrays, starts, strict=True)]
        shipped[: 1 + len(wide)] = [few.view(int64) for few in shipped[: 1 + len(wide)]]
        written, values_there = shipped[0], shipped.pop(1 + len(wide))
        if places.size:
            target.index_copy_(0, written, values_there)
        return shipped[1:]

    def _take(self) -> tuple[NDArray[np.int64], Ints]:
        writes, self._writes = self._writes, []
        if not writes:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        places = np.concatenate([np.arange(place, place + len(values)) for _, place, values in writes])
        values = np.concatenate([values for _, _, values in writes])
        return places, values
