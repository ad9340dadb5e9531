"""A device stream on the CPU that is as unforgiving as a card's: what was not waited for is not there yet."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kvasir_runtime.runner.state.device_stream import StreamEvent

Copies = list[tuple[Tensor, Tensor]]
Sources = list[tuple[NDArray[np.generic], NDArray[np.generic]]]


@dataclass(slots=True)
class _Event:
    """Brings what was on its way when it was set, and looks at what was read until then."""

    copies: Copies
    sources: Sources
    num_waits: list[int]

    def synchronize(self) -> None:
        self.num_waits[0] += 1
        for target, value in self.copies:
            target.copy_(value)
        for array, sent in self.sources:
            assert np.array_equal(array, sent), "memory was written that a copy to the device still read"


@dataclass(slots=True)
class Overlapping:
    """Work is done at once and in order, as on a stream; results arrive with the event that is recorded behind them.

    num_uploads, num_waits: how often the host sent something, and how often it waited. num_events: marks in the stream;
    most_ahead: how many of them were not waited for at a time.
    """

    overlaps: bool = True
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    num_uploads: int = 0
    num_waits: list[int] = field(default_factory=lambda: [0])
    num_events: int = 0
    most_ahead: int = 0
    _copies: Copies = field(default_factory=list)
    _sources: Sources = field(default_factory=list)

    def upload(self, array: NDArray[np.generic]) -> Tensor:
        self.num_uploads += 1
        self._sources.append((array, array.copy()))
        return torch.from_numpy(array.copy())

    def download(self, tensor: Tensor) -> Tensor:
        missing = -(1 << 40) if tensor.dtype == torch.int64 else float("nan")
        target = torch.full_like(tensor, missing)
        self._copies.append((target, tensor.clone()))
        return target

    def record_event(self) -> StreamEvent:
        self.num_events += 1
        self.most_ahead = max(self.most_ahead, self.num_events - self.num_waits[0])
        event = _Event(self._copies, self._sources, self.num_waits)
        self._copies, self._sources = [], []
        return event


@dataclass(slots=True)
class OverlappingMark:
    """Passed once so many copies were made."""

    stream: "OverlappingCopies"
    place: int

    def has_passed(self) -> bool:
        return self.stream.num_made >= self.place

    def seconds_since(self, earlier: "OverlappingMark") -> float:
        return float(self.place - earlier.place)


@dataclass(slots=True)
class OverlappingCopies:
    """A stream of copies that are made, in order, when the test says so."""

    num_made: int = 0
    queued: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def host_memory(self, rows: int, row_bytes: int) -> Tensor:
        return torch.full((rows, row_bytes), 255, dtype=torch.uint8)

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        self.queued += pairs

    def follow(self) -> None:
        """What was computed by now has ended, as on any CPU."""

    def hold_back(self, mark: OverlappingMark) -> None:
        self.run(mark.place - self.num_made)

    def mark(self) -> OverlappingMark:
        return OverlappingMark(self, len(self.queued))

    def run(self, count: int) -> None:
        """Make the next copies."""
        for target, source in self.queued[self.num_made : self.num_made + count]:
            target.copy_(source)
            self.num_made += 1


@dataclass(slots=True)
class WeightCopies:
    """A stream of copies that come as late as they may: what is being copied is not a number until it is waited for.

    log: of calls.
    """

    log: list[str] = field(default_factory=list)
    num_made: int = 0
    queued: deque[tuple[Tensor, Tensor]] = field(default_factory=deque)

    def host_memory(self, rows: int, row_bytes: int) -> Tensor:
        return torch.zeros((rows, row_bytes), dtype=torch.uint8)

    def follow(self) -> None:
        self.log.append("follow")

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        for target, source in pairs:
            target.fill_(255)
            self.queued.append((target, source))
            self.log.append("copy")

    def mark(self) -> "WeightMark":
        return WeightMark(self, self.num_made + len(self.queued))

    def hold_back(self, mark: "WeightMark") -> None:
        self.log.append("hold back")
        while self.num_made < mark.place:
            target, source = self.queued.popleft()
            target.copy_(source)
            self.num_made += 1


@dataclass(frozen=True, slots=True)
class WeightMark:
    """Behind so many copies."""

    stream: WeightCopies
    place: int

    def has_passed(self) -> bool:
        self.stream.hold_back(self)
        return True

    def seconds_since(self, earlier: "WeightMark") -> float:
        return 0.125
