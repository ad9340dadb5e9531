"""What a step sends to the device, packed into one copy: writes into the rows, and arrays of the step.

Filled and sent by `device_state`; this module does not know what the numbers mean.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, int64

from kvasir_runtime.runner.state.device_stream import DeviceStream

Ints = NDArray[np.int32]

_ALIGNED = 4
"""Numbers in 16 bytes: Triton compiles a kernel again for a pointer that is not a multiple of that."""


class HostToDeviceBatch:
    """Writes into one flat tensor of int32, by offset, and arrays that are sent with them."""

    def __init__(self, stream: DeviceStream) -> None:
        self._stream = stream
        self._writes: list[tuple[int, int, Ints]] = []

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        return bool(self._writes)

    def write(self, row: int, offset: int, values: Sequence[int] | Ints) -> None:
        """Write values from an offset on. row: which they belong to, for discard_row()."""
        if len(values):
            self._writes.append((row, offset, np.asarray(values, dtype=np.int32)))

    def discard_row(self, row: int) -> None:
        """Remove the writes of a row that another sequence takes."""
        if self._writes:
            self._writes = [write for write in self._writes if write[0] != row]

    def send(self, target: Tensor, wide: Sequence[NDArray[np.int64]] = (), narrow: Sequence[Ints] = ()) -> list[Tensor]:
        """Send everything and write into the target, each offset once. Returns the arrays, as given, on the device.

        There must be something to send.
        """
        offsets, values = self._take()
        arrays = [array.view(np.int32) for array in (offsets, *wide)] + [values, *narrow]
        padded = [-(-array.size // _ALIGNED) * _ALIGNED for array in arrays]
        packed = np.zeros(sum(padded), dtype=np.int32)
        ends = np.cumsum(padded).tolist()
        starts = [end - size for end, size in zip(ends, padded, strict=True)]
        for array, start in zip(arrays, starts, strict=True):
            packed[start : start + array.size] = array
        sent = self._stream.upload(packed)
        on_device = [sent[start : start + array.size] for array, start in zip(arrays, starts, strict=True)]
        on_device[: 1 + len(wide)] = [array.view(int64) for array in on_device[: 1 + len(wide)]]
        offsets_there, values_there = on_device[0], on_device.pop(1 + len(wide))
        if offsets.size:
            target.index_copy_(0, offsets_there, values_there)
        return on_device[1:]

    def _take(self) -> tuple[NDArray[np.int64], Ints]:
        writes, self._writes = self._writes, []
        if not writes:
            return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32)
        offsets = np.concatenate([np.arange(offset, offset + len(values)) for _, offset, values in writes])
        values = np.concatenate([values for _, _, values in writes])
        return offsets, values
