"""How the runner enqueues work on its device and waits for it; only this module uses streams and pinned memory.

A stream runs in order. The host never writes again to what it uploads: each upload has new memory of its own, which
returns to its allocator once the device has read it. `HostStream` overlaps with nothing; on CUDA everything is enqueued
at launch. Tests have a third stream, a CPU that behaves as CUDA does.
"""

from collections.abc import Iterable
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


class CopyMark(Protocol):
    """A point in a stream of copies."""

    def has_passed(self) -> bool:
        """Whether all copies before it have ended; never waits."""

    def seconds_since(self, earlier: "CopyMark") -> float:
        """Time that the device took from an earlier mark to this one; both have passed."""


class CopyStream(Protocol):
    """Copies between host and device, in order, beside what the device computes."""

    def host_memory(self, rows: int, row_bytes: int) -> Tensor:
        """(rows, row_bytes) uint8 on the host, of undefined content, to which the device copies without the host."""

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Enqueue copies to the first from the second of each pair; never waits."""

    def mark(self) -> CopyMark:
        """The point after all copies so far."""

    def follow(self) -> None:
        """Copies from now on begin when all that the device was given to compute so far has ended."""

    def hold_back(self, mark: CopyMark) -> None:
        """What the device is given to compute from now on begins when a mark has passed."""


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


@dataclass(frozen=True, slots=True)
class _CudaMark:
    event: torch.cuda.Event

    def has_passed(self) -> bool:
        """By a query, which does not wait."""
        return bool(self.event.query())

    def seconds_since(self, earlier: CopyMark) -> float:
        """By the clock of the device."""
        assert isinstance(earlier, _CudaMark)
        return float(earlier.event.elapsed_time(self.event)) / 1000


class CudaCopyStream:
    """A stream of its own. What it reads must be computed, and what it writes unused, when a copy is enqueued, or when
    what it follows has ended. May be captured with the stream that it follows and holds back.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def host_memory(self, rows: int, row_bytes: int) -> Tensor:
        """Registered with the driver: torch's own allocator takes pinned memory by powers of two.

        Raises RuntimeError where the memory cannot be had.
        """
        memory = torch.empty((rows, row_bytes), dtype=torch.uint8)
        code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.numel(), 0))
        if code:
            raise RuntimeError(f"{memory.numel():,} bytes of the host cannot be pinned (CUDA error {code})")
        return memory

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Asynchronous, since one side is pinned."""
        with torch.cuda.stream(self._stream):
            for target, source in pairs:
                target.copy_(source, non_blocking=True)

    def mark(self) -> CopyMark:
        """A CUDA event with a time."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return _CudaMark(event)

    def follow(self) -> None:
        """By an event of the current stream."""
        self._stream.wait_event(torch.cuda.current_stream(self._device).record_event())

    def hold_back(self, mark: CopyMark) -> None:
        """By an event of this stream."""
        assert isinstance(mark, _CudaMark)
        torch.cuda.current_stream(self._device).wait_event(mark.event)


def stream_of(device: torch.device) -> DeviceStream:
    """The stream of a device."""
    return HostStream() if device.type == "cpu" else CudaStream(device)
