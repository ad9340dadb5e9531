"""Layers whose weights stay in memory of the host and pass through buffers of the device in every step.

Called by `decoder`. Two streamed layers are on the device at a time: while one is computed, the next is copied to the
other buffer. A forward pass copies all that it reads, so that it may be captured as a graph, which then has the copies
in it. Source: the streaming of weights in Aminabadi et al. 2022 (ZeRO-Inference), by whole layers and one ahead.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from types import FunctionType
from typing import Any, Final, Protocol, TypeVar

import torch
from torch import Tensor

from kvasir_api.weight_offload import BUFFERS

Layer = TypeVar("Layer")

ALIGNMENT: Final = 256
LEAST_BYTES: Final = 65_536
"""Smaller tensors (norms, biases, counters) stay on the device: a copy of their own takes longer than they do."""


class WeightCopies(Protocol):
    """Copies beside what a device computes, in order. `runner.state.device_stream` has that of CUDA."""

    def host_memory(self, rows: int, row_bytes: int) -> Tensor:
        """(rows, row_bytes) uint8 on the host, from which the device copies without the host."""

    def follow(self) -> None:
        """Copies from now on begin when all that was enqueued to compute so far has ended."""

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Enqueue copies to the first from the second of each pair; never waits."""

    def mark(self) -> Any:
        """The point after all copies so far."""

    def hold_back(self, mark: Any) -> None:
        """What is enqueued to compute from now on begins when a mark has passed."""


@dataclass(frozen=True, slots=True)
class _Streamed:
    """buffer: (num_bytes,) on the device; host: the same, what belongs there."""

    buffer: Tensor
    host: Tensor


class LayerOffload:
    """The streamed layers of one decoder. indices: of them in it, ascending."""

    def __init__(self, indices: Sequence[int], copies: WeightCopies, *, least_bytes: int = LEAST_BYTES) -> None:
        """least_bytes: of a tensor that is streamed."""
        self.indices = tuple(indices)
        self._copies, self._least_bytes = copies, least_bytes
        self._layers: dict[int, _Streamed] = {}
        self._buffers: dict[int, Tensor] = {}
        self._marks: dict[int, Any] = {}

    @property
    def host_bytes(self) -> int:
        """Of the host's memory that weights are in."""
        return sum(layer.host.numel() for layer in self._layers.values())

    def added(self, index: int, layer: Layer) -> Layer:
        """The layer, computing with weights in a buffer; its own go to the host. To be called once for each, in order.

        layer: of dataclasses, tuples, partial calls and functions that hold no tensors otherwise, as all of them may be
        replaced. Raises TypeError for another, and RuntimeError where the host's memory cannot be had.
        """
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors_of(layer)}
        kept = {at: one for at, one in storages.items() if one.nbytes() >= self._least_bytes}
        offsets, end = dict[int, int](), 0
        for at, storage in kept.items():
            offsets[at] = end
            end += -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
        host = self._copies.host_memory(1, max(end, 1)).view(-1)
        for at, storage in kept.items():
            content = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
            host[offsets[at] : offsets[at] + storage.nbytes()].copy_(content)
        buffer = self._buffer(len(self._layers) % BUFFERS, host.numel(), next(tensors_of(layer)).device)
        self._layers[index] = _Streamed(buffer=buffer, host=host)

        def moved(tensor: Tensor) -> Tensor:
            offset = offsets.get(tensor.untyped_storage().data_ptr())
            if offset is None:
                return tensor
            first = offset // tensor.element_size() + tensor.storage_offset()
            view = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            return view.set_(buffer.untyped_storage(), first, tensor.size(), tensor.stride())

        made: Layer = replaced(layer, moved)
        return made

    def in_turn(self, layers: Sequence[Layer]) -> Iterator[tuple[int, Layer]]:
        """Indices and layers of one forward pass: what is enqueued before the next is taken finds its weights."""
        self._copies.follow()
        for index in self.indices[:BUFFERS]:
            self._fetch(index)
        ahead = iter(self.indices[BUFFERS:])
        for index, layer in enumerate(layers):
            mark = self._marks.pop(index, None)
            if mark is not None:
                self._copies.hold_back(mark)
            yield index, layer
            if mark is not None and (following := next(ahead, None)) is not None:
                self._copies.follow()
                self._fetch(following)

    def copy_all(self) -> tuple[Any, Any]:
        """Copy every streamed layer once, to measure it: the marks before and behind. Nothing may be computed then."""
        before = self._copies.mark()
        for index in self.indices:
            self._fetch(index)
        self._marks.clear()
        return before, self._copies.mark()

    def _fetch(self, index: int) -> None:
        layer = self._layers[index]
        self._copies.copy([(layer.buffer[: layer.host.numel()], layer.host)])
        self._marks[index] = self._copies.mark()

    def _buffer(self, turn: int, num_bytes: int, device: torch.device) -> Tensor:
        """That of every second layer, a larger one from a larger layer on."""
        buffer = self._buffers.get(turn)
        if buffer is None or buffer.numel() < num_bytes:
            buffer = self._buffers[turn] = torch.empty(num_bytes, dtype=torch.uint8, device=device)
        return buffer


def tensors_of(part: Any) -> Iterator[Tensor]:
    """All tensors that a part of a layer computes with."""
    found: list[Tensor] = []

    def noted(tensor: Tensor) -> Tensor:
        found.append(tensor)
        return tensor

    replaced(part, noted)
    return iter(found)


def replaced(part: Any, by: Callable[[Tensor], Tensor]) -> Any:
    """A part of a layer with other tensors. Raises TypeError where it holds some that cannot be seen."""
    if isinstance(part, Tensor):
        return by(part)
    if isinstance(part, partial):
        args = [replaced(one, by) for one in part.args]
        return partial(replaced(part.func, by), *args, **{k: replaced(v, by) for k, v in part.keywords.items()})
    if type(part) is tuple:
        return tuple(replaced(one, by) for one in part)
    if is_dataclass(part) and not isinstance(part, type):
        values = {field.name: getattr(part, field.name) for field in fields(part)}
        new = {name: replaced(value, by) for name, value in values.items()}
        return replace(part, **{name: value for name, value in new.items() if value is not values[name]})
    if isinstance(part, FunctionType) and part.__closure__:
        raise TypeError(f"{part.__qualname__} keeps weights where they cannot be streamed from")
    return part
