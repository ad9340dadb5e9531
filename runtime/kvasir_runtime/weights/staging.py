"""How bytes get from a buffer of the host to where weights are: at once on a CPU, over a side stream on CUDA.

Called by `streaming`, which owns the buffers. On CUDA a buffer may be written again only once its copy has run, so each
placing returns a mark to wait for; everything behind the copy (conversion, quantizing) runs on the device.
"""

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

Put = Callable[[Tensor], None]
"""What is done with the bytes of a piece, given where the weights are."""


class CopyEvent(Protocol):
    """A moment on the device, such as a torch.cuda.Event."""

    def synchronize(self) -> None:
        """Wait until it has come: then the buffer may be written again."""


class Staging(Protocol):
    """Of one kind of device. All calls come from one thread."""

    def buffer(self, num_bytes: int) -> Tensor:
        """(num_bytes,) uint8 on the host, its contents undefined."""

    def place(self, raw: Tensor, put: Put) -> CopyEvent | None:
        """Begin put(raw there). None: raw is not needed any more; else it is once the mark has come."""

    def finish(self) -> None:
        """Wait for all that was placed."""


class CpuStaging:
    """For a CPU: a buffer is where the weights are, and put is done when it returns."""

    def buffer(self, num_bytes: int) -> Tensor:
        """Ordinary memory, which costs nothing before it is written."""
        return torch.empty(num_bytes, dtype=torch.uint8)

    def place(self, raw: Tensor, put: Put) -> None:
        """Now."""
        put(raw)

    def finish(self) -> None:
        """Nothing is under way."""


class CudaStaging:
    """For a CUDA device: pinned buffers, copies behind one another on a stream of their own.

    The copy goes into scratch memory of that stream, whose size is a piece's since it is taken again for the next one.
    cuda, pinned: torch's own; tests without a card bring theirs.
    """

    def __init__(
        self, device: torch.device, *, cuda: Any = torch.cuda, pinned: Callable[[int], Tensor] | None = None
    ) -> None:
        self._device = device
        self._cuda = cuda
        self._pinned = pinned or _pinned
        self._stream = cuda.Stream(device)
        # The weights were taken on the current stream, perhaps from memory that earlier work on it still reads.
        self._stream.wait_stream(cuda.current_stream(device))

    def buffer(self, num_bytes: int) -> Tensor:
        """Pinned memory, so that copies run beside everything else."""
        return self._pinned(num_bytes)

    def place(self, raw: Tensor, put: Put) -> CopyEvent:
        """The mark comes right behind the copy; put goes on with the scratch memory."""
        with self._cuda.stream(self._stream):
            there = raw.to(self._device, non_blocking=True)
            copied = self._cuda.Event()
            copied.record(self._stream)
            put(there)
        mark: CopyEvent = copied
        return mark

    def finish(self) -> None:
        """The weights may be used on any stream afterwards."""
        self._stream.synchronize()
        self._cuda.current_stream(self._device).wait_stream(self._stream)


def staging(device: torch.device) -> Staging:
    """That of a device."""
    return CpuStaging() if device.type == "cpu" else CudaStaging(device)


def _pinned(num_bytes: int) -> Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True)
