"""How the runner enqueues work on its device and waits for it; only this module uses streams and pinned memory.

A stream runs in order. The host never writes again to what it uploads: each upload has new memory of its own, which
returns to its allocator once the device has read it. `HostStream` overlaps with nothing; on CUDA everything is enqueued
at launch. Tests have a third stream, a CPU that behaves as CUDA does.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class StreamEvent(Protocol):
    """A point in a stream."""

    def synchronize(self) -> None:
        """Wait until the device reaches it."""


class DeviceStream(Protocol):
    """Work runs in the order of the calls. overlaps: whether the host continues while the device computes."""

    @property
    def device(self) -> torch.device: ...

    @property
    def overlaps(self) -> bool: ...

    def upload(self, array: NDArray[np.generic]) -> Tensor:
        """A copy on the device; never waits. The array must not be written afterwards."""

    def download(self, tensor: Tensor) -> Tensor:
        """A copy in host memory, complete once a later event was synchronized; never waits."""

    def record_event(self) -> StreamEvent:
        """The point after all work so far."""


class _PassedEvent:
    def synchronize(self) -> None:
        """Return at once: all work is done."""


class HostStream:
    """The CPU itself: arrays are tensors, and everything is done when the call returns."""

    overlaps = False

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def upload(self, array: NDArray[np.generic]) -> Tensor:
        """The same memory."""
        return torch.from_numpy(array)

    def download(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def record_event(self) -> StreamEvent:
        """An event that has passed."""
        return _PassedEvent()


@dataclass(frozen=True, slots=True)
class CudaStream:
    """The current stream of a GPU. Copies from pageable memory would wait for the stream, so all memory is pinned."""

    device: torch.device
    overlaps: bool = True

    def upload(self, array: NDArray[np.generic]) -> Tensor:
        """Torch's allocator reuses pinned memory only once the copies from it are done."""
        return torch.from_numpy(array).pin_memory().to(self.device, non_blocking=True)

    def download(self, tensor: Tensor) -> Tensor:
        """A copy in new pinned memory."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

    def record_event(self) -> StreamEvent:
        """A CUDA event."""
        event = torch.cuda.Event()
        event.record()
        return event


def stream_of(device: torch.device) -> DeviceStream:
    """The stream of a device."""
    return HostStream() if device.type == "cpu" else CudaStream(device)
