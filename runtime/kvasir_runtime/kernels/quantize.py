"""From floating-point rows to 8- or 4-bit numbers, with the scales that lose least. Called piece by piece while weights
are loaded.

    (rows, columns) in any floating type, a format -> QuantizedWeight; columns must be whole groups

8 bits: symmetric, the largest of a group becomes 127, or in e4m3 448. 4 bits: a scale and a minimum for each group,
found by a search over ranges that cut off a little at both ends, each refined by least squares; the one of least
weighted squared error is kept (after the idea of ggml's own quantizers: few numbers far out must not widen all steps).
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight

Quantize = Callable[[Tensor, QuantFormat], QuantizedWeight]

RANGES: Final = (1.0, 0.9, 0.8)
"""Shares of a group's range that are tried for 4 bits: 1.3 to 2 % less error than the first alone, more add nothing."""
REFINEMENTS: Final = 2
"""Least squares, then the numbers again. With the weighing the second makes KL on trained weights a third smaller."""
LEAST_SCALE: Final = 1e-30
"""What a group of zeros is divided by."""
E4M3_MAX: Final = 448.0
"""The largest number of e4m3."""
_PIECE: Final = 1 << 18
"""Elements that are searched at a time, so that the search stays in the processor's caches."""


def reference(rows: Tensor, format: QuantFormat) -> QuantizedWeight:  # noqa: A002 -- its name
    """By torch's operations, on the device where the rows are. Raises ValueError for numbers of a table, which are only
    read.
    """
    if format.table is not None:
        raise ValueError(f"no weight is rounded to {format.name}")
    weight = quantized.empty(format, rows.shape[0], rows.shape[1], rows.device)
    step = max(_PIECE // rows.shape[1], 1)
    for first in range(0, rows.shape[0], step):
        part = rows[first : first + step].float()
        into = weight.rows(first, part.shape[0])
        grouped = part.view(part.shape[0], weight.scales.shape[1], -1)
        if format.floating:
            _floating(grouped, into)
        elif format.bits == 8:
            _symmetric(grouped, into)
        else:
            _ranged(grouped, into)
    return weight


def _symmetric(grouped: Tensor, into: QuantizedWeight) -> None:
    into.scales.copy_(grouped.abs().amax(dim=2) / 127)
    # As it was rounded: the numbers must fit to that one.
    scale = into.scales.float().clamp(min=LEAST_SCALE).unsqueeze(2)
    into.values.copy_((grouped / scale).round_().clamp_(-127, 127).view(into.values.shape))


def _floating(grouped: Tensor, into: QuantizedWeight) -> None:
    into.scales.copy_(grouped.abs().amax(dim=2) / E4M3_MAX)
    scale = into.scales.float().clamp(min=LEAST_SCALE).unsqueeze(2)
    into.values.copy_((grouped / scale).clamp_(-E4M3_MAX, E4M3_MAX).view(into.values.shape))


def _ranged(grouped: Tensor, into: QuantizedWeight) -> None:
    low, high = grouped.amin(dim=2, keepdim=True), grouped.amax(dim=2, keepdim=True)
    weight = _importance(grouped)
    best: tuple[Tensor, ...] = ()
    for share in RANGES:
        cut = (high - low) * ((1 - share) / 2)
        scale, base = ((high - low) * (share / 15)).clamp(min=LEAST_SCALE), low + cut
        for _ in range(REFINEMENTS):
            scale, base = _least_squares(grouped, _nearest(grouped, scale, base), weight, scale, base)
        error = torch.addcmul(base, _nearest(grouped, scale, base), scale).sub_(grouped).square_().mul_(weight)
        found = (error.sum(dim=2, keepdim=True), scale, base)
        best = _better(found, best) if best else found
    assert into.minima is not None
    into.scales.copy_(best[1].squeeze(2))
    into.minima.copy_(-best[2].squeeze(2))
    # Once more with scale and minimum as they were rounded.
    scale, base = into.scales.float().clamp(min=LEAST_SCALE).unsqueeze(2), -into.minima.float().unsqueeze(2)
    into.values.copy_(quantized.packed(_nearest(grouped, scale, base).view(grouped.shape[0], -1)))


def _better(found: tuple[Tensor, ...], best: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """For each group the one of both whose first, its error, is smaller."""
    return tuple(torch.where(found[0] < best[0], new, old) for new, old in zip(found, best, strict=True))


def _importance(grouped: Tensor) -> Tensor:
    """What each value's error counts, 1 in the sum of a group: large weights move more, as activations are alike."""
    size = grouped.abs()
    size += grouped.square().mean(dim=2, keepdim=True).sqrt_()
    return size / size.sum(dim=2, keepdim=True).clamp(min=1e-30)


def _nearest(grouped: Tensor, scale: Tensor, base: Tensor) -> Tensor:
    return (grouped - base).div_(scale).round_().clamp_(0, 15)


def _least_squares(grouped: Tensor, q: Tensor, weight: Tensor, scale: Tensor, base: Tensor) -> tuple[Tensor, Tensor]:
    """Scale and base that fit the numbers q best; as they were where q is nearly the same everywhere in a group."""
    weighed = q * weight
    mean_q, mean_w = weighed.sum(dim=2, keepdim=True), (grouped * weight).sum(dim=2, keepdim=True)
    spread = (weighed * q).sum(dim=2, keepdim=True) - mean_q * mean_q
    slope = ((weighed * grouped).sum(dim=2, keepdim=True) - mean_q * mean_w) / spread.clamp(min=1e-9)
    usable = (spread > 0.01) & (slope > 0)
    slope = torch.where(usable, slope, scale)
    return slope, torch.where(usable, mean_w - slope * mean_q, base)
