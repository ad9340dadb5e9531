"""What a step brings to the device, packed so that it travels in one copy: writes to the rows, and tables of the step.

Filled by `devicerows`, emptied by ship(); a packet never knows what its numbers mean. Eight-byte numbers come first, so
that views of them are aligned.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, int64

from kvasir_runtime.runner.queues import Queue

Ints = NDArray[np.int32]


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
        eights, fours = [places, *wide], [values, *narrow]
        packed = np.concatenate([*(array.view(np.int32) for array in eights), *fours])
        sent, at = self._queue.upload(packed), 0
        shipped = []
        for array in eights:
            shipped.append(sent[at : at + 2 * array.size].view(int64))
            at += 2 * array.size
        for few in fours:
            shipped.append(sent[at : at + few.size])
            at += few.size
        if places.size:
            target.index_copy_(0, shipped[0], shipped[len(eights)])
        return [*shipped[1 : len(eights)], *shipped[len(eights) + 1 :]]

    def _take(self) -> tuple[NDArray[np.int64], Ints]:
        writes, self._writes = self._writes, []
        if not writes:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        places = np.concatenate([np.arange(place, place + len(values)) for _, place, values in writes])
        values = np.concatenate([values for _, _, values in writes])
        return places, values
