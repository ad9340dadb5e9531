"""What a step brings to the device, packed so that it travels in one copy: writes to the rows, and tables of the step.

Filled by `device_state`, emptied by send(); the numbers have no meaning here.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, int64

from kvasir_runtime.runner.state.device_stream import DeviceStream

Ints = NDArray[np.int32]

_ALIGNED = 4
"""Numbers of 16 bytes: Triton compiles a kernel anew for a pointer that begins elsewhere."""


class HostToDeviceBatch:
    """Writes into one flat tensor of int32, by places, and arrays that are wanted on the device beside them."""

    def __init__(self, stream: DeviceStream) -> None:
        self._stream = stream
        self._writes: list[tuple[int, int, Ints]] = []

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._writes)

    def write(self, row: int, place: int, values: Sequence[int] | Ints) -> None:
        """Values for the places from one on. row: whose they are, for forget()."""
        if len(values):
            self._writes.append((row, place, np.asarray(values, dtype=np.int32)))

    def discard_row(self, row: int) -> None:
        """Nothing that was to be written for a row counts any more: somebody else takes it."""
        if self._writes:
            self._writes = [write for write in self._writes if write[0] != row]

    def send(self, target: Tensor, wide: Sequence[NDArray[np.int64]] = (), narrow: Sequence[Ints] = ()) -> list[Tensor]:
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
        sent = self._stream.upload(packed)
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
