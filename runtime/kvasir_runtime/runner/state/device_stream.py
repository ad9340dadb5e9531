"""How the runner hands work to its device and hears that it is done; nobody else knows streams and pinned memory.

A stream is worked off in order. What is sent to a device is never written again by the host: each upload has fresh
memory of its own, which goes back to its allocator once the device has read it. `HOST` has nothing to overlap with, so
the runner computes a plan only when it is collected; on CUDA everything is enqueued at launch. Tests bring a third one,
a CPU that behaves as CUDA does.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class StreamEvent(Protocol):
    """A place in a stream."""

    def synchronize(self) -> None:
        """Until the device got there."""


class DeviceStream(Protocol):
    """What follows in the code follows in the stream. overlaps: whether the host goes on while the device computes."""

    @property
    def device(self) -> torch.device: ...

    @property
    def overlaps(self) -> bool: ...

    def upload(self, array: NDArray[np.generic]) -> Tensor:
        """A copy on the device, without waiting for it; the array must not be written any more."""

    def download(self, tensor: Tensor) -> Tensor:
        """A copy in host memory, complete once a mark behind it was waited for; never waits itself."""

    def record_event(self) -> StreamEvent:
        """The place behind everything so far."""


class _Passed:
    def synchronize(self) -> None:
        """Nothing is ever ahead."""


class HostStream:
    """The CPU itself: arrays are tensors, and everything is done when the call returns."""

    overlaps = False

    @property
    def device(self) -> torch.device:
        """Ours."""
        return torch.device("cpu")

    def upload(self, array: NDArray[np.generic]) -> Tensor:
        """The same memory."""
        return torch.from_numpy(array)

    def download(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def record_event(self) -> StreamEvent:
        """Behind nothing."""
        return _Passed()


@dataclass(frozen=True, slots=True)
class _Event:
    event: torch.cuda.Event

    def synchronize(self) -> None:
        """Until the stream got there."""
        self.event.synchronize()


@dataclass(frozen=True, slots=True)
class CudaStream:
    """The current stream of a card. Pageable memory would make copies wait for the stream, so all of it is pinned."""

    device: torch.device
    overlaps: bool = True

    def upload(self, array: NDArray[np.generic]) -> Tensor:
        """Torch's allocator of pinned memory hands a piece out again only once the copies from it are done."""
        return torch.from_numpy(array).pin_memory().to(self.device, non_blocking=True)

    def download(self, tensor: Tensor) -> Tensor:
        """Into fresh pinned memory."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)

    def record_event(self) -> StreamEvent:
        """An event."""
        event = torch.cuda.Event()
        event.record()
        return _Event(event)


def stream_of(device: torch.device) -> DeviceStream:
    """The stream of a device."""
    return HostStream() if device.type == "cpu" else CudaStream(device)
