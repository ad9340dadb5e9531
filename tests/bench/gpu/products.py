"""How near products with short weights or a gate, and changes of logits, come to a card: cells for `kernels`."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.linear import NormedLinear
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.kernels.quantized import FP8, MXFP4, NVFP4, QuantFormat, QuantizedWeight

FORMATS: Final = {
    "fp8": FP8,
    "fp8 blocks": replace(FP8, group=128),
    "int8": QuantFormat(bits=8),
    "int4": QuantFormat(bits=4),
    "mxfp4": MXFP4,
    "nvfp4": NVFP4,
}
Made = Iterator[tuple[str, Callable[[], Callable[[], object]], int, int]]
"""Of each cell its name, what makes it, and its bounds: bytes and operations."""


def gates(hidden: int, inner: int, tokens: tuple[int, ...], ops: Ops, device: torch.device, dtype: torch.dtype) -> Made:
    """The first half of a feed-forward layer, gate included, in the compute type."""

    def call(count: int) -> Callable[[], object]:
        layer = ops.gated(torch.randn(2 * inner, hidden, device=device).to(dtype) / 64, None)
        x = torch.randn(count, hidden, device=device).to(dtype)
        return lambda: layer(x)

    for count in tokens:
        moved = (2 * inner * hidden + count * (hidden + inner)) * dtype.itemsize
        yield f"linear, gate_up and gate, {count}", partial(call, count), moved, 4 * count * inner * hidden


def normed(
    hidden: int, inner: int, tokens: tuple[int, ...], ops: Ops, device: torch.device, dtype: torch.dtype
) -> Made:
    """A norm with its residual and the product behind it, as two operations and, where the product has it, as one."""

    def call(count: int, together: bool) -> Callable[[], object]:
        layer = ops.linear(torch.randn(inner, hidden, device=device).to(dtype) / 64, None)
        x, residual, norm = (torch.randn(*size, hidden, device=device).to(dtype) for size in ((count,), (count,), ()))
        if together and isinstance(layer, NormedLinear) and layer.normed(x, residual, norm, 1e-5) is not None:
            return lambda: layer.normed(x, residual, norm, 1e-5)
        return lambda: layer(ops.rms_norm(x, residual, norm, 1e-5)[0])

    for count in tokens:
        moved = (inner * hidden + count * (3 * hidden + inner)) * dtype.itemsize
        for together in (False, True):
            name = f"norm and product, {'one kernel where there is one' if together else 'two kernels'}, {count}"
            yield name, partial(call, count, together), moved, 2 * count * inner * hidden


def short(hidden: int, inner: int, tokens: tuple[int, ...], ops: Ops, device: torch.device, dtype: torch.dtype) -> Made:
    """Products with weights of few bits, of the shape of the second half of a feed-forward layer."""

    def call(format_: QuantFormat, count: int) -> Callable[[], object]:
        layer = ops.linear(random(format_, hidden, inner, device), None)
        x = torch.randn(count, inner, device=device).to(dtype)
        return lambda: layer(x)

    for name, format_ in FORMATS.items():
        if format_.fits(inner):
            for count in tokens:
                moved = format_.num_bytes(hidden, inner) + count * (hidden + inner) * dtype.itemsize
                yield f"linear, down, {name}, {count}", partial(call, format_, count), moved, 2 * count * inner * hidden


def random(format_: QuantFormat, rows: int, columns: int, device: torch.device) -> QuantizedWeight:
    """A weight made on the device."""
    weight = quantized.empty(format_, rows, columns, device)
    if weight.units is not None:
        weight.values.random_(0, 256)
        weight.scales.view(torch.uint8).fill_(120)
        weight.units.fill_(0.001)
        return weight
    if format_.floating:
        weight.values.copy_(torch.randn(weight.values.shape, device=device) * 100)
    else:
        weight.values.view(torch.uint8).random_(0, 256)
    weight.scales.fill_(0.001)
    if weight.minima is not None:
        weight.minima.fill_(0.0075)
    return weight


def changes(vocab: int, rows: tuple[int, ...], ops: Ops, device: torch.device) -> Made:
    """Penalties, and masks of grammars that forbid every other id."""

    def penalise(count: int) -> Callable[[], object]:
        logits, slots = torch.randn(count, vocab, device=device), torch.arange(count, device=device)
        counts = torch.zeros(count, vocab, dtype=torch.int32, device=device)
        known = torch.zeros(count, vocab, dtype=torch.bool, device=device)
        strengths = torch.tensor([[1.1, 0.1, 0.1]], device=device).repeat(count, 1)
        return lambda: ops.penalties(logits, slots, counts, known, strengths)

    def forbid(count: int) -> Callable[[], object]:
        logits, slots = torch.randn(count, vocab, device=device), torch.arange(count, device=device)
        masks = torch.full((count, -(-vocab // 32)), 0x55555555, dtype=torch.int32, device=device)
        return lambda: ops.bitmask(logits, masks, slots)

    for count in rows:
        yield f"penalties, {count}", partial(penalise, count), count * vocab * (4 + 4 + 4 + 1), 0
        yield f"bitmask, {count}", partial(forbid, count), count * (vocab // 8 + vocab // 2 * 4), 0
