"""Checkpoints whose matrices are integers of 4 or 8 bits with scales and zeros beside them: GPTQ, AWQ and those of
compressed-tensors. Pairs the tensors of a matrix, so that `load` sees one.

    weight[o, i] = scale[o, g] * (q[o, i] - zero[o, g])        g: the group of column i

Called by `load`. 4 bits fit our own format, whose minimum is scale * zero, as long as groups are multiples of 32
columns; so do 8 bits whose zeros are all in the middle. Columns that are grouped in another order (act-order) are kept
in that one. What fits none is decoded. Scales and zeros are read when the first piece of their matrix has come.

    GPTQ                qweight (columns / 8, rows), qzeros (groups, rows / 8), scales (groups, rows), g_idx (columns,)
    AWQ                 qweight (columns, rows / 8), qzeros (groups, rows / 8), scales (groups, rows)
    compressed-tensors  weight_packed (rows, columns / 8), weight_scale (rows, groups), weight_zero_point (rows / 8,
                        groups), weight_g_idx (columns,); or weight (rows, columns) of 8 bits

with eight numbers of 4 bits in an int32, the lowest bits first (AWQ: those of `AWQ_ORDER`), or four of 8 bits.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight, packed
from kvasir_runtime.models.quantization_config import QuantizationScheme
from kvasir_runtime.weights.checkpoint_tensor import (
    CheckpointTensor,
    StoredKind,
    beside,
    expect_dtype,
    expect_matrix,
    expect_shape,
    whole,
    widest_group,
)

AWQ_ORDER: Final = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight numbers each four bits of an int32 are."""
_MATRICES_READ: Final = 8
"""Whose scales are held while pieces of several matrices come in turn."""
_INTEGERS: Final = (torch.int8, torch.uint8, torch.int32, torch.int64)
_UNUSED: Final = (".weight_shape", ".input_zero_point")

Named = Mapping[str, CheckpointTensor]
Tables = Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Matrix:
    """values: (bytes, count) -> (rows, columns * bits / 8) uint8 of so many rows or columns, two numbers to a byte as
    QuantizedWeight has them, 8 bits without sign. tables: scales and zeros, both (rows, groups) float32. group: columns
    that share them; index: (columns,) the group of each, None where they lie side by side.
    """

    name: str
    bits: int
    group: int
    index: Tensor | None
    by_columns: bool
    values: Callable[[Tensor, int], Tensor]
    tables: Tables


def joined(stored: Iterable[CheckpointTensor], scheme: QuantizationScheme) -> list[CheckpointTensor]:
    """Tensors with each matrix of integers as one, under the name of the matrix. Raises ModelError."""
    named = {one.name: one for one in stored}
    used, found, parts = set[str](), list[CheckpointTensor](), tuple[str, ...]()
    read = functools.lru_cache(maxsize=2 * _MATRICES_READ)(whole)
    for name, one in named.items():
        stem, _, part = name.rpartition(".")
        if part == "qweight":
            parts = ("qweight", "qzeros", "scales", "g_idx")
            found.append(_transposed(named, stem, scheme, read))
            found += _spare_bias(named.get(f"{stem}.bias"))
            used.add(f"{stem}.bias")
        elif part == "weight_packed" or (one.dtype == torch.int8 and f"{name}_scale" in named):
            parts = (part, "weight_scale", "weight_zero_point", "weight_g_idx", "weight_shape")
            found.append(_by_rows(named, stem, part, read))
        else:
            continue
        used |= {f"{stem}.{part}" for part in parts}
    for name, one in named.items():
        if name in used or name.endswith(_UNUSED):
            continue
        if one.dtype in _INTEGERS:
            raise ModelError(
                f"{one.path}: tensor {name} has type {str(one.dtype).removeprefix('torch.')} without scales beside it"
            )
        found.append(one)
    return found


def _transposed(
    named: Named, stem: str, scheme: QuantizationScheme, read: Callable[[CheckpointTensor], Tensor]
) -> CheckpointTensor:
    """A matrix of GPTQ or AWQ."""
    values, zeros, scales = (beside(named, stem, "qweight", part) for part in ("qweight", "qzeros", "scales"))
    for one in (values, zeros, scales):
        expect_matrix(one)
    for one in (values, zeros):
        expect_dtype(one, torch.int32)
    (groups, rows), is_awq = scales.shape, scheme.method == "awq"
    bits = 4 if is_awq else 32 * zeros.shape[1] // rows
    if bits not in (4, 8):
        raise ModelError(
            f"{values.path}: tensor {zeros.name} has {zeros.shape[1]} columns for {rows} rows of the matrix"
        )
    each = 32 // bits
    columns = values.shape[0] * (1 if is_awq else each)
    expect_shape(values, (columns, rows // each) if is_awq else (columns // each, rows))
    expect_shape(zeros, (groups, rows // each))
    group = -(-columns // groups)
    index = None if is_awq else _index(named.get(f"{stem}.g_idx"), columns, group, groups, read)

    def tables() -> tuple[Tensor, Tensor]:
        stored = _unpacked(read(zeros).view(torch.uint8), rows, bits, AWQ_ORDER if is_awq else ())
        zero = (stored.int() + scheme.zero_offset) & (2**bits - 1)
        return read(scales).float().T.contiguous(), zero.float().T.contiguous()

    unpack = _awq_values if is_awq else functools.partial(_gptq_values, bits)
    matrix = _Matrix(
        name=f"{stem}.weight",
        bits=bits,
        group=group,
        index=index,
        by_columns=True,
        values=functools.partial(unpack, rows),
        tables=tables,
    )
    exact = bits == 4 or scheme.symmetric
    return _as_one(matrix, values, (rows, columns), exact=exact, wide=bits == 4 or scales.dtype != torch.float16)


def _by_rows(named: Named, stem: str, part: str, read: Callable[[CheckpointTensor], Tensor]) -> CheckpointTensor:
    """A matrix of compressed-tensors."""
    values, scales = named[f"{stem}.{part}"], beside(named, stem, part, "weight_scale")
    zeros, is_packed = named.get(f"{stem}.weight_zero_point"), part == "weight_packed"
    expect_matrix(values)
    rows, width = values.shape
    if is_packed:
        expect_dtype(values, torch.int32)
        described = beside(named, stem, part, "weight_shape")
        expect_dtype(described, torch.int32, torch.int64)
        expect_shape(described, (2,))
        length, columns = read(described).tolist()
        columns = columns if length == rows and columns > 0 else 0
        bits = next((bits for bits in (4, 8) if -(-columns * bits // 32) == width), 0) if columns else 0
    else:
        columns, bits = width, 8
    if not bits or columns * bits % 8:
        raise ModelError(f"{values.path}: tensor {values.name} has shape {list(values.shape)}, which fits no matrix")
    groups = scales.shape[1] if len(scales.shape) == 2 else 1
    if not groups or math.prod(scales.shape) not in (1, rows * groups):
        raise ModelError(
            f"{scales.path}: tensor {scales.name} has shape {list(scales.shape)}, expected {[rows, groups]}"
        )
    group = -(-columns // groups)
    if zeros is not None and is_packed:
        expect_dtype(zeros, torch.int32)
    if zeros is not None:
        expect_shape(zeros, (-(-rows * bits // 32), groups) if is_packed else scales.shape)
    middle = 2 ** (bits - 1)

    def tables() -> tuple[Tensor, Tensor]:
        scale = read(scales).float().view(-1, groups).expand(rows, groups)
        if zeros is None:
            return scale, torch.full((rows, groups), float(middle))
        if is_packed:
            return scale, _unpacked(read(zeros).T.contiguous().view(torch.uint8), rows, bits, ()).T.float()
        return scale, read(zeros).float().view(-1, groups).expand(rows, groups) + middle

    matrix = _Matrix(
        name=f"{stem}.weight",
        bits=bits,
        group=group,
        index=_index(named.get(f"{stem}.weight_g_idx"), columns, group, groups, read),
        by_columns=False,
        values=functools.partial(_row_values, columns * bits // 8, is_packed),
        tables=tables,
    )
    exact = bits == 4 or zeros is None
    return _as_one(matrix, values, (rows, columns), exact=exact, wide=bits == 4 or scales.dtype != torch.float16)


def _as_one(
    matrix: _Matrix, values: CheckpointTensor, shape: tuple[int, int], *, exact: bool, wide: bool
) -> CheckpointTensor:
    """exact: whether its numbers fit ours, if groups do. wide: of the scales."""
    columns, order, digest = shape[1], None, ""
    width = widest_group(matrix.group, columns)
    if matrix.index is not None:
        order = matrix.index.argsort(stable=True)
        sorted_ = matrix.index.index_select(0, order)
        exact &= bool(torch.equal(sorted_, torch.arange(columns) // matrix.group))
        digest = hashlib.sha256(order.numpy().tobytes()).hexdigest()
    ours = QuantFormat(bits=matrix.bits, group=width, wide=wide, ordered=order is not None)
    format_ = ours if exact and width and not columns % matrix.group else None
    return replace(
        values,
        name=matrix.name,
        shape=shape,
        dtype=None,
        unit=math.lcm(32 // matrix.bits, matrix.group) if matrix.by_columns else 1,
        kind=StoredKind(name=f"{ours.name} {digest}", format=format_),
        part=lambda first, _: _part(matrix, values, format_, order, first),
        by_columns=matrix.by_columns,
    )


def _part(
    matrix: _Matrix, values: CheckpointTensor, format_: QuantFormat | None, order: Tensor | None, first: int
) -> CheckpointTensor:
    """Of the rows, or columns, from the first on."""
    kind = None if format_ is None else StoredKind(name=format_.name, format=format_)
    kept = None if format_ is None else functools.partial(_kept, matrix, format_, order, first)
    decoded = functools.partial(_decoded, matrix, first)
    return replace(values, name=matrix.name, decoded=decoded, kind=kind, kept=kept, by_columns=matrix.by_columns)


def _decoded(matrix: _Matrix, first: int, raw: Tensor, count: int) -> Tensor:
    """(rows, columns) float32, computed as the module says."""
    q = _numbers(matrix.values(raw, count), matrix.bits)
    scales, zeros = _tables(matrix, first, count, raw.device)
    start = first if matrix.by_columns else 0
    columns = torch.arange(start, start + q.shape[1])
    group = columns // matrix.group if matrix.index is None else matrix.index[start : start + q.shape[1]]
    group = group.to(raw.device)
    return (q.float() - zeros.index_select(1, group)) * scales.index_select(1, group)


def _kept(
    matrix: _Matrix, format_: QuantFormat, order: Tensor | None, first: int, raw: Tensor, count: int
) -> QuantizedWeight:
    """The same numbers in a format of ours."""
    values = matrix.values(raw, count)
    scales, zeros = _tables(matrix, first, count, raw.device)
    if matrix.by_columns and order is None:
        groups = slice(first // matrix.group, (first + count) // matrix.group)
        scales, zeros = scales[:, groups], zeros[:, groups]
    if order is not None:
        order = order.to(raw.device)
        numbers = _numbers(values, matrix.bits).index_select(1, order)
        values = packed(numbers) if matrix.bits == 4 else numbers
    times = matrix.group // format_.group
    if matrix.bits == 8 and not bool((zeros == 128).all()):
        raise ModelError(f"{matrix.name}: zeros are not in the middle, but quantization_config says sym")
    return QuantizedWeight(
        format=format_,
        values=values if matrix.bits == 4 else (values ^ 0x80).view(torch.int8),
        scales=scales.repeat_interleave(times, dim=1).to(format_.scale_dtype),
        minima=(scales * zeros).repeat_interleave(times, dim=1) if matrix.bits == 4 else None,
        order=order,
    )


def _tables(matrix: _Matrix, first: int, count: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of all rows of pieces by columns, else of the piece's."""
    tables = (table.to(device) for table in matrix.tables())
    scales, zeros = tables if matrix.by_columns else (table[first : first + count] for table in tables)
    return scales, zeros


def _gptq_values(bits: int, rows: int, raw: Tensor, count: int) -> Tensor:
    """Four bytes of a word are neighbours in a row, whatever the bits."""
    words = raw.view(count * bits // 32, rows, 4)
    return words.permute(1, 0, 2).reshape(rows, -1)


def _awq_values(rows: int, raw: Tensor, count: int) -> Tensor:
    return packed(_unpacked(raw.view(count, -1), rows, 4, AWQ_ORDER).T.contiguous())


def _row_values(width: int, is_packed: bool, raw: Tensor, count: int) -> Tensor:
    """Bytes of so many columns, without what fills the last word. Bytes alone have a sign, others are in words."""
    values = raw.view(count, -1)[:, :width]
    return values if is_packed else values ^ 0x80


def _numbers(values: Tensor, bits: int) -> Tensor:
    return values if bits == 8 else torch.stack((values & 15, values >> 4), dim=2).flatten(1)


def _unpacked(raw: Tensor, count: int, bits: int, order: tuple[int, ...]) -> Tensor:
    """(n, bytes of words) -> (n, count) uint8. order: of the numbers in a word, where they do not lie in turn."""
    q = _numbers(raw, bits)
    if order:
        places = torch.tensor(order, device=raw.device).argsort()
        q = q.view(q.shape[0], -1, len(order)).index_select(2, places).flatten(1)
    return q[:, :count]


def _index(
    stored: CheckpointTensor | None,
    columns: int,
    group: int,
    groups: int,
    read: Callable[[CheckpointTensor], Tensor],
) -> Tensor | None:
    """The group of each column, None where they lie side by side, as they do where all are said to be in the first."""
    if stored is None:
        return None
    expect_shape(stored, (columns,))
    index = read(stored).long()
    if torch.equal(index, torch.arange(columns) // group) or not bool(index.any()):
        return None
    if int(index.min()) < 0 or int(index.max()) >= groups:
        raise ModelError(f"{stored.path}: tensor {stored.name} names a group of {groups} that is not there")
    return index


def _spare_bias(bias: CheckpointTensor | None) -> Iterator[CheckpointTensor]:
    """Some writers give every matrix a bias, of zeros where the model has none."""
    if bias is not None:
        yield bias if bool(whole(bias).any()) else replace(bias, spare=True)
