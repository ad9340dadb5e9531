"""Checkpoints whose matrices are numbers of 4 bits with an exponent (e2m1), with a scale for each group of columns:
NVFP4, and MXFP4 of compressed-tensors. Pairs the tensors of a matrix, so that `load` sees one. Called by it.

    weight[o, i] = e2m1[o, i] * scale[o, i // group]

    compressed-tensors  X.weight_packed (rows, columns / 2) uint8, the even column in the low half; X.weight_scale
                        (rows, groups): of 16 columns e4m3, over X.weight_global_scale (1,) float32; of 32 columns
                        uint8, a power of two: 2^(scale - 127)
    modelopt            X.weight (rows, columns / 2) uint8, X.weight_scale (rows, groups of 16) e4m3, times
                        X.weight_scale_2 float32

In halves the numbers are integers of 8 bits, which our format of that size holds exactly. Scales of activations are
left alone. Sources: OCP Microscaling Formats 1.0, 2023; NVIDIA's description of NVFP4, 2025.
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight
from kvasir_runtime.weights.checkpoint_tensor import CheckpointTensor, StoredKind, expect_dtype, expect_matrix, whole

MXFP4_GROUP: Final = 32
NVFP4_GROUP: Final = 16
HALVES: Final = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Of each number of e2m1 its worth in halves."""
_BIAS: Final = 127
_UNUSED: Final = (".input_global_scale", ".output_global_scale")

Named = Mapping[str, CheckpointTensor]
Scales = Callable[[], Tensor]
"""Of a whole matrix: (rows, groups) float32."""


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


def matrix(stored: CheckpointTensor, group: int, scales: Scales) -> CheckpointTensor:
    """The same of (rows, columns) numbers, decoded, and kept in halves."""
    kind = StoredKind(name=f"e2m1 by {group}", format=QuantFormat(bits=8, group=group, wide=True))
    short = replace(stored, kind=kind, dtype=None)
    return replace(short, part=functools.partial(_part, short, scales))


def powers_of_two(exponents: Tensor) -> Tensor:
    """float32 of uint8, exactly."""
    return torch.exp2(exponents.double() - _BIAS).float()


def _paired(named: Named, stem: str, values: CheckpointTensor) -> CheckpointTensor:
    expect_matrix(values)
    (rows, half), scales = values.shape, named[f"{stem}.weight_scale"]
    columns, is_power = 2 * half, scales.dtype == torch.uint8
    group = MXFP4_GROUP if is_power else NVFP4_GROUP
    if scales.shape != (rows, columns // group) or columns % group:
        raise ModelError(
            f"{scales.path}: tensor {scales.name} has shape {list(scales.shape)}, expected {[rows, columns // group]}"
        )
    named_values = replace(values, name=f"{stem}.weight", shape=(rows, columns))
    if is_power:
        return matrix(named_values, group, lambda: powers_of_two(whole(scales)))
    expect_dtype(scales, torch.float8_e4m3fn)
    over, times = named.get(f"{stem}.weight_global_scale"), named.get(f"{stem}.weight_scale_2")
    outer = over or times
    if outer is None:
        raise ModelError(f"{values.path}: tensor {values.name} has no {stem}.weight_global_scale beside it")
    expect_dtype(outer, torch.float32)
    if outer.num_bytes != 4:
        raise ModelError(f"{outer.path}: tensor {outer.name} has shape {list(outer.shape)}, expected [1]")

    def both() -> Tensor:
        number = whole(outer).view(1)
        each = whole(scales).float()
        return each / number if over is not None else each * number

    return matrix(named_values, group, both)


def _part(one: CheckpointTensor, scales: Scales, first: int, _: int) -> CheckpointTensor:
    """Of some rows."""
    assert one.format is not None
    kept = functools.partial(_kept, one.format, scales, first)
    return replace(one, kept=kept, decoded=functools.partial(_decoded, one.format.group, scales, first))


def _kept(format_: QuantFormat, scales: Scales, first: int, raw: Tensor, count: int) -> QuantizedWeight:
    """The same numbers in halves."""
    of_rows = scales()[first : first + count].to(raw.device)
    return QuantizedWeight(format=format_, values=_halves(raw, count), scales=of_rows / 2, minima=None)


def _decoded(group: int, scales: Scales, first: int, raw: Tensor, count: int) -> Tensor:
    of_rows = scales()[first : first + count].to(raw.device) / 2
    return _halves(raw, count).float() * of_rows.repeat_interleave(group, dim=1)


def _halves(raw: Tensor, count: int) -> Tensor:
    """(count, columns) int8; a byte at a time, which is twice as fast as number by number."""
    each = torch.arange(256, device=raw.device)
    halves = torch.tensor(HALVES, dtype=torch.int8, device=raw.device)
    pairs = torch.stack((halves[each & 15], halves[each >> 4]), dim=1).view(torch.int16).flatten()
    return pairs.index_select(0, raw.int()).view(torch.int8).view(count, -1)
