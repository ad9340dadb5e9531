"""Checkpoints whose matrices are numbers of 4 bits with an exponent (e2m1), with a scale for each group of columns:
NVFP4, and MXFP4 of compressed-tensors. Pairs the tensors of a matrix, so that `load` sees one. Called by it.

    weight[o, i] = e2m1[o, i] * scale[o, i // group]

    compressed-tensors  X.weight_packed (rows, columns / 2) uint8, the even column in the low half; X.weight_scale
                        (rows, groups): of 16 columns e4m3, over X.weight_global_scale (1,) float32; of 32 columns
                        uint8, a power of two: 2^(scale - 127)
    modelopt            X.weight (rows, columns / 2) uint8, X.weight_scale (rows, groups of 16) e4m3, times
                        X.weight_scale_2 float32

Numbers and scales are held as they are, and what multiplies a whole matrix, and the half that our formula has, in the
unit of its rows. Scales of activations are left alone. Sources: OCP Microscaling Formats 1.0, 2023; NVIDIA's
description of NVFP4, 2025.
"""

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.quantized import MXFP4, NVFP4, QuantFormat, QuantizedWeight, dequantized
from kvasir_runtime.weights.checkpoint_tensor import CheckpointTensor, StoredKind, expect_dtype, expect_matrix, whole

_HALF: Final = 0.5
_NO_EXPONENT: Final = 0xFF
_NO_E4M3: Final = 0x7F
"""From this byte on, e4m3 is no number, or negative."""
_UNUSED: Final = (".input_global_scale", ".output_global_scale")

Named = Mapping[str, CheckpointTensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupScales:
    """What multiplies the numbers of a matrix. rows: (first, count) -> (count, groups) uint8, as they are in the file.

    format: says what these bytes are. unit: of the matrix in halves, positive and finite. name: for messages.
    """

    format: QuantFormat
    rows: Callable[[int, int], Tensor]
    name: str
    unit: Callable[[], float] = lambda: _HALF

    def read(self, first: int, count: int, device: torch.device) -> Tensor:
        """(count, groups) in the format's type. Raises ModelError for scales that are none."""
        scales = self.rows(first, count)
        least, what = (_NO_EXPONENT, "no") if self.format == MXFP4 else (_NO_E4M3, "negative or no")
        if bool((scales >= least).any()):
            raise ModelError(f"{self.name} has scales that are {what} numbers")
        return scales.to(device).view(self.format.scale_dtype)


def joined(stored: Iterable[CheckpointTensor]) -> list[CheckpointTensor]:
    """Tensors with each matrix of e2m1 as one, under the name of the matrix. Raises ModelError."""
    named = {one.name: one for one in stored}
    found, used = list[CheckpointTensor](), set[str]()
    for name, one in named.items():
        stem, _, part = name.rpartition(".")
        if one.dtype != torch.uint8 or part not in ("weight_packed", "weight") or f"{stem}.weight_scale" not in named:
            continue
        found.append(_paired(named, stem, one))
        used |= {name, *(f"{stem}.{beside}" for beside in ("weight_scale", "weight_global_scale", "weight_scale_2"))}
    return found + [one for name, one in named.items() if name not in used and not name.endswith(_UNUSED)]


def matrix(stored: CheckpointTensor, scales: GroupScales) -> CheckpointTensor:
    """The same of (rows, columns) numbers, decoded and kept."""
    kind = StoredKind(name=f"e2m1 by {scales.format.group}", format=scales.format)
    short = replace(stored, kind=kind, dtype=None)
    return replace(short, part=functools.partial(_part, short, scales))


def _paired(named: Named, stem: str, values: CheckpointTensor) -> CheckpointTensor:
    expect_matrix(values)
    (rows, half), scales = values.shape, named[f"{stem}.weight_scale"]
    columns, format_ = 2 * half, MXFP4 if scales.dtype == torch.uint8 else NVFP4
    if scales.shape != (rows, format_.groups(columns)) or not format_.fits(columns):
        wanted = [rows, format_.groups(columns)]
        raise ModelError(f"{_named(scales)} has shape {list(scales.shape)}, expected {wanted}")
    read = GroupScales(format=format_, rows=functools.partial(_bytes, scales), name=_named(scales))
    if format_ == NVFP4:
        expect_dtype(scales, torch.float8_e4m3fn)
        over, times = named.get(f"{stem}.weight_global_scale"), named.get(f"{stem}.weight_scale_2")
        outer = over or times
        if outer is None:
            raise ModelError(f"{_named(values)} has no {stem}.weight_global_scale beside it")
        expect_dtype(outer, torch.float32)
        if outer.num_bytes != 4:
            raise ModelError(f"{_named(outer)} has shape {list(outer.shape)}, expected [1]")
        read = replace(read, unit=functools.cache(functools.partial(_unit, outer, divides=over is not None)))
    return matrix(replace(values, name=f"{stem}.weight", shape=(rows, columns)), read)


def _named(stored: CheckpointTensor) -> str:
    return f"{stored.path}: tensor {stored.name}"


def _bytes(scales: CheckpointTensor, first: int, count: int) -> Tensor:
    return whole(scales.with_rows(first, count)).view(torch.uint8)


def _unit(outer: CheckpointTensor, *, divides: bool) -> float:
    """float32. Raises ModelError for what scales no matrix."""
    number = whole(outer).view(1)
    unit = float(_HALF / number if divides else _HALF * number)
    if not (unit > 0 and math.isfinite(unit)):
        raise ModelError(f"{_named(outer)} is {float(number)}, expected a positive number that is finite")
    return unit


def _part(one: CheckpointTensor, scales: GroupScales, first: int, _: int) -> CheckpointTensor:
    """Of some rows."""
    kept = functools.partial(_kept, scales, first)
    return replace(one, kept=kept, decoded=lambda raw, count: dequantized(kept(raw, count)))


def _kept(scales: GroupScales, first: int, raw: Tensor, count: int) -> QuantizedWeight:
    return QuantizedWeight(
        format=scales.format,
        values=raw.view(count, -1),
        scales=scales.read(first, count, raw.device),
        minima=None,
        units=torch.full((count, 1), scales.unit(), device=raw.device),
    )
