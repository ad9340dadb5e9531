"""Checkpoints of bitsandbytes: NF4 and FP4 by blocks, perhaps with scales that are quantized too, and int8 by row.

Pairs the tensors of a matrix, so that `load` sees one. Called by it. Four bits are places in a list of 16 values, of
which ours has the nearest integers of 8 bits; blocks that go on in the next row are decoded. The scale of a row of 8
bits is its largest number.

    4 bits  X.weight (rows * columns / 2, 1) uint8, the first number in the high half; X.weight.absmax, one for each
            block of numbers; X.weight.quant_map (16,); X.weight.quant_state.bitsandbytes__nf4, JSON; where absmax is
            uint8, X.weight.nested_absmax and X.weight.nested_quant_map (256,)
    8 bits  X.weight (rows, columns) int8, X.SCB (rows,) float32
"""

import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Final

import msgspec
import torch
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.quantized import CODEBOOKS, QuantFormat, QuantizedWeight
from kvasir_runtime.weights.checkpoint_tensor import (
    CheckpointTensor,
    StoredKind,
    expect_dtype,
    expect_matrix,
    whole,
    whole_of_each,
    widest_group,
)

_STATE: Final = ".quant_state.bitsandbytes__"
_VALUES: Final = {
    "nf4": (
        -1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004, 0.0,
        0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684, 1.0,
    ),
    "bnb-fp4": (
        0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4,
        0.0, -1 / 192, -2 / 3, -1.0, -1 / 3, -1 / 2, -1 / 6, -1 / 4,
    ),
}  # fmt: skip
"""By codebook the list that files of its type have."""
_BESIDE_ROWS: Final = (".SCB", ".weight_format")

Named = Mapping[str, CheckpointTensor]
_Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class _State(msgspec.Struct, frozen=True):
    """What the JSON beside a matrix says. The last block of each size may be cut, also where it is the only one."""

    shape: tuple[_Count, _Count]
    blocksize: _Count
    nested_blocksize: _Count = 1
    nested_offset: float = 0.0


def joined(stored: Iterable[CheckpointTensor]) -> list[CheckpointTensor]:
    """Tensors with each matrix of bitsandbytes as one. Raises ModelError."""
    named = {one.name: one for one in stored}
    states = {name.partition(_STATE)[0]: one for name, one in named.items() if _STATE in name}
    places = {name: _beside(named, named[name], "quant_map") for name in states if name in named}
    for state in states.values():
        expect_dtype(state, torch.uint8)
    for one in places.values():
        _expect(one, 16)
    read = whole_of_each([*states.values(), *places.values()])
    found = list[CheckpointTensor]()
    for name, one in named.items():
        scales = named.get(name.removesuffix("weight") + "SCB")
        if name in states:
            found.append(_of_blocks(named, one, _said(states[name], read), read[places[name].name].float()))
        elif scales is not None and one.dtype == torch.int8:
            found.append(_of_rows(one, scales))
        elif not name.endswith(_BESIDE_ROWS) and f"{name.partition('.weight.')[0]}.weight" not in states:
            found.append(one)
    return found


def _said(state: CheckpointTensor, read: Mapping[str, Tensor]) -> _State:
    """Raises ModelError."""
    try:
        return msgspec.json.decode(read[state.name].numpy().tobytes(), type=_State)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{state.path}: tensor {state.name}: {error}") from error


def _of_blocks(named: Named, values: CheckpointTensor, said: _State, places: Tensor) -> CheckpointTensor:
    """A matrix of 4 bits. places: (16,) float32, the values."""
    (rows, columns), size = said.shape, said.blocksize
    if columns % 2 or values.dtype != torch.uint8 or values.num_bytes != rows * columns // 2:
        raise ModelError(
            f"{values.path}: tensor {values.name} has shape {list(values.shape)} of"
            f" {str(values.dtype).removeprefix('torch.')}, expected {rows * columns // 2} bytes of uint8"
        )
    absmax = _beside(named, values, "absmax")
    _expect(absmax, -(-rows * columns // size))
    is_nested = absmax.dtype == torch.uint8
    if is_nested:
        blocks, list_ = (_beside(named, values, part) for part in ("nested_absmax", "nested_quant_map"))
        _expect(blocks, -(-absmax.shape[0] // said.nested_blocksize))
        _expect(list_, 256)

    def scales(begin: int, end: int) -> Tensor:
        """(blocks,) float32, of some blocks."""
        own = whole(absmax.with_rows(begin, end - begin))
        if not is_nested:
            return own.float()
        outer = whole(blocks).float()[torch.arange(begin, end) // said.nested_blocksize]
        return whole(list_).float()[own.long()] * outer + said.nested_offset

    def decoded(first: int, raw: Tensor, count: int) -> Tensor:
        """High halves are first."""
        q = torch.stack((raw >> 4, raw & 15), dim=1).flatten().long()
        begin, end = first * columns, (first + count) * columns
        block = torch.arange(begin, end) // size - begin // size
        scale = scales(begin // size, -(-end // size))[block].to(raw.device)
        return (places.to(raw.device)[q] * scale).view(count, columns)

    format_ = _format(tuple(places.tolist()), columns, size)

    def kept(first: int, raw: Tensor, count: int) -> QuantizedWeight:
        assert format_ is not None
        largest = scales(first * columns // size, (first + count) * columns // size).to(raw.device)
        each = (largest / max(CODEBOOKS[format_.codebook])).repeat_interleave(size // format_.group).view(count, -1)
        return QuantizedWeight(
            format=format_, values=((raw >> 4) | (raw << 4)).view(count, -1), scales=each, minima=None
        )

    kind = StoredKind(name="4 bits of bitsandbytes", format=format_)
    part = replace(values, shape=(rows, columns), dtype=None, kind=kind)

    def of(first: int, _: int) -> CheckpointTensor:
        into = None if format_ is None else functools.partial(kept, first)
        return replace(part, decoded=functools.partial(decoded, first), kept=into)

    return replace(part, part=of)


@functools.lru_cache(maxsize=64)
def _format(places: tuple[float, ...], columns: int, size: int) -> QuantFormat | None:
    """Of rows of whole blocks of so many numbers, which are places in a list of `_VALUES`; None of others."""
    width = 0 if columns % size else widest_group(columns, size)
    alike = {
        name: all(math.isclose(*pair, rel_tol=1e-5, abs_tol=1e-8) for pair in zip(places, values, strict=True))
        for name, values in _VALUES.items()
    }
    book = next((name for name, is_alike in alike.items() if is_alike), None)
    return QuantFormat(bits=4, group=width, wide=True, codebook=book) if width and book else None


def _of_rows(values: CheckpointTensor, scales: CheckpointTensor) -> CheckpointTensor:
    """A matrix of 8 bits."""
    expect_matrix(values)
    rows, columns = values.shape
    _expect(scales, rows)
    width = widest_group(columns)
    format_ = QuantFormat(bits=8, group=width, wide=True) if width else None

    def steps(first: int, raw: Tensor, count: int) -> Tensor:
        return (whole(scales.with_rows(first, count)).float()[:, None] / 127).to(raw.device)

    def decoded(first: int, raw: Tensor, count: int) -> Tensor:
        return raw.view(torch.int8).view(count, columns).float() * steps(first, raw, count)

    def kept(first: int, raw: Tensor, count: int) -> QuantizedWeight:
        assert format_ is not None
        step = steps(first, raw, count).expand(-1, columns // width).contiguous()
        return QuantizedWeight(
            format=format_, values=raw.view(torch.int8).view(count, columns), scales=step, minima=None
        )

    part = replace(values, dtype=None, kind=StoredKind(name="8 bits of bitsandbytes", format=format_))

    def of(first: int, _: int) -> CheckpointTensor:
        into = None if format_ is None else functools.partial(kept, first)
        return replace(part, decoded=functools.partial(decoded, first), kept=into)

    return replace(part, part=of)


def _beside(named: Named, values: CheckpointTensor, part: str) -> CheckpointTensor:
    found = named.get(f"{values.name}.{part}")
    if found is None:
        raise ModelError(f"{values.path}: tensor {values.name} has no {values.name}.{part} beside it")
    return found


def _expect(stored: CheckpointTensor, numbers: int) -> None:
    if stored.shape != (numbers,):
        raise ModelError(f"{stored.path}: tensor {stored.name} has shape {list(stored.shape)}, expected [{numbers}]")
