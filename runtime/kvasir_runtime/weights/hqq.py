"""Checkpoints of HQQ (half-quadratic quantization) as transformers saves them: numbers of 8 to 1 bits, with a floating
scale and zero for each group. Pairs the tensors of a matrix, so that `load` sees one. Called by it.

    weight[k] = scale[group of k] * (q[k] - zero[group of k])        k: the place in the matrix, row after row

    X.W_q               the numbers as lines: of `group_size` numbers, each a group (axis 1), or `group_size` of them,
                        across which a group lies (axis 0). Lines are cut in as many equal parts as a word holds
                        numbers, of which the first has the highest bits. Perhaps named a floating type
    X.scale, X.zero     (lines, 1) by axis 1, (1, numbers of a line) by axis 0
    X.shape             (2,) of the matrix; X.axis, X.group_size: integers; X.packing: its name, letters as uint8

Numbers of up to 4 bits fit our own format of 4, whose minimum is scale * zero, as long as groups are multiples of 32
columns of a row. What does not is decoded. Rows whose numbers share a word are far apart: a matrix is read as one
piece. What else lies beside W_q is left alone. Source: hqq 0.2.8, `core/quantize.py` and `core/bitpack.py`.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight, packed
from kvasir_runtime.weights.checkpoint_tensor import (
    CheckpointTensor,
    StoredKind,
    beside,
    expect_dtype,
    expect_shape,
    whole,
    whole_of_each,
    widest_group,
)

_FLOATING: Final = (torch.float16, torch.bfloat16, torch.float32)
_UNREAD: Final = {
    "scale_q": "its scales are quantized (quant_scale)",
    "zero_q": "its zeros are quantized (quant_zero)",
    "zero_scale": "its scales and zeros are one tensor (offload_meta)",
    "weight": "which of both holds the numbers is not known",
}
_INTEGERS: Final = (torch.int32, torch.int64)
_FACTS: Final[dict[str, tuple[tuple[int, ...], tuple[torch.dtype, ...]]]] = {
    "shape": ((2,), _INTEGERS),
    "axis": ((), _INTEGERS),
    "group_size": ((), _INTEGERS),
    "packing": ((7,), (torch.uint8,)),
}
"""Shapes and types of the small tensors that describe a matrix; the name of a packing has seven letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Packing:
    """each: numbers of so many bits in a word."""

    bits: int
    each: int
    word: torch.dtype = torch.uint8


_PACKINGS: Final = {
    "8bit_u8": _Packing(bits=8, each=1),
    "4bit_u8": _Packing(bits=4, each=2),
    "3bit_32": _Packing(bits=3, each=10, word=torch.int32),
    "2bit_u8": _Packing(bits=2, each=4),
    "1bit_u8": _Packing(bits=1, each=8),
}
"""Those of 5 and 6 bits are packed as 8, and three values (1.58 bits) as 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    """shape: (rows, columns). lines: how many, and the numbers of one. group: numbers that share a scale."""

    packing: _Packing
    shape: tuple[int, int]
    lines: tuple[int, int]
    group: int
    scale: CheckpointTensor
    zero: CheckpointTensor


def joined(stored: Iterable[CheckpointTensor]) -> list[CheckpointTensor]:
    """Tensors with each matrix of HQQ as one, under the name of the matrix. Raises ModelError."""
    named = {one.name: one for one in stored}
    stems = dict.fromkeys(name.removesuffix(".W_q") for name in named if name.endswith(".W_q"))
    facts = whole_of_each(_checked(named, stem, part) for stem in stems for part in _FACTS)
    found = [_joined(named, stem, facts) for stem in stems]
    for name, one in named.items():
        stem, _, part = name.rpartition(".")
        if stem not in stems or part == "bias":
            found.append(one)
    return found


def _checked(named: Mapping[str, CheckpointTensor], stem: str, part: str) -> CheckpointTensor:
    """One of _FACTS of a module whose other tensors can be read."""
    values = named[f"{stem}.W_q"]
    for other in _UNREAD:
        if odd := named.get(f"{stem}.{other}"):
            raise ModelError(f"{odd.path}: tensor {odd.name} beside {values.name} is not read: {_UNREAD[other]}")
    found, (shape, dtypes) = beside(named, stem, "W_q", part), _FACTS[part]
    expect_dtype(found, *dtypes)
    expect_shape(found, shape)
    return found


def _joined(named: Mapping[str, CheckpointTensor], stem: str, facts: Mapping[str, Tensor]) -> CheckpointTensor:
    """The matrix of one module. facts: by the names of their tensors."""
    values = named[f"{stem}.W_q"]
    scale, zero, axis, size, packing = (
        beside(named, stem, "W_q", part) for part in ("scale", "zero", "axis", "group_size", "packing")
    )
    how = _packing(packing, facts[packing.name])
    (rows, columns), along, group = facts[f"{stem}.shape"].tolist(), int(facts[axis.name]), int(facts[size.name])
    if along not in (0, 1):
        raise ModelError(f"{axis.path}: tensor {axis.name} is {along}, expected 0 or 1")
    if min(rows, columns, group) < 1 or rows * columns % group:
        raise ModelError(f"{size.path}: tensor {size.name} is {group}, which does not divide {[rows, columns]}")
    rest = rows * columns // group
    lines, tables = ((rest, group), (rest, 1)) if along == 1 else ((group, rest), (1, rest))
    for one in (scale, zero):
        expect_dtype(one, *_FLOATING)
        expect_shape(one, tables)
    expect_dtype(values, how.word, *_FLOATING)
    wanted, line_bytes = -(-lines[0] // how.each), lines[1] * how.word.itemsize
    if values.shape[:1] != (wanted,) or values.num_bytes != wanted * line_bytes:
        found = (
            f"shape {list(values.shape)} and {values.num_bytes} bytes, expected {wanted} lines of {line_bytes} bytes"
        )
        raise ModelError(f"{values.path}: tensor {values.name} has {found}")
    in_rows = along == 1 and columns % group == 0
    width = widest_group(group) if in_rows else 0
    format_ = QuantFormat(bits=4, group=width, wide=True) if width and how.bits <= 4 else None
    matrix = _Matrix(packing=how, shape=(rows, columns), lines=lines, group=group, scale=scale, zero=zero)
    return replace(
        values,
        name=f"{stem}.weight",
        shape=matrix.shape,
        decoded=functools.partial(_decoded, matrix),
        unit=rows,
        kind=StoredKind(name="hqq", format=format_),
        kept=None if format_ is None else functools.partial(_kept, matrix, format_),
        dtype=None,
    )


def _decoded(matrix: _Matrix, raw: Tensor, _: int) -> Tensor:
    """(rows, columns) float32, all of them."""
    scale, zero = _tables(matrix, raw.device)
    return ((_numbers(matrix, raw).float() - zero) * scale).view(matrix.shape)


def _kept(matrix: _Matrix, format_: QuantFormat, raw: Tensor, _: int) -> QuantizedWeight:
    """The same numbers in a format of ours."""
    scale, zero = (table.view(matrix.shape[0], -1) for table in _tables(matrix, raw.device))
    times = matrix.group // format_.group
    return QuantizedWeight(
        format=format_,
        values=packed(_numbers(matrix, raw).view(matrix.shape)),
        scales=scale.repeat_interleave(times, dim=1),
        minima=(scale * zero).repeat_interleave(times, dim=1),
    )


def _numbers(matrix: _Matrix, raw: Tensor) -> Tensor:
    """(lines, numbers of one) uint8. What fills the last part up is left out."""
    bits, (count, width) = matrix.packing.bits, matrix.lines
    words = raw.view(matrix.packing.word).view(-1, width)
    places = reversed(range(matrix.packing.each))
    parts = [((words >> (bits * place)) & (2**bits - 1)).to(torch.uint8) for place in places]
    return torch.cat(parts)[:count]


def _tables(matrix: _Matrix, device: torch.device) -> tuple[Tensor, Tensor]:
    """Scales and zeros, float32."""
    return whole(matrix.scale).float().to(device), whole(matrix.zero).float().to(device)


def _packing(stored: CheckpointTensor, letters: Tensor) -> _Packing:
    name = bytes(letters.tolist()).decode("ascii", "replace")
    if name not in _PACKINGS:
        raise ModelError(f"{stored.path}: tensor {stored.name} is {name!r}, expected one of {', '.join(_PACKINGS)}")
    return _PACKINGS[name]
