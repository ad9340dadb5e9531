"""Checkpoints whose layers have all experts of a matrix in one tensor, as gpt-oss has them: a tensor for each.

Called by `load`, so that it sees each expert's matrix by a name of its own. The two tensors of a matrix of 4 bits
(MXFP4) become one:

    X_blocks  (experts, rows, groups, 16) uint8, 32 numbers of e2m1 in a row, two in a byte, the first in the low half
    X_scales  (experts, rows, groups) uint8, a power of two: 2^(scale - 127)
    X         (experts, columns, rows) in full: each expert column after column
    X_bias    (experts, rows)

    X.weight  (experts, rows, columns), of input_linear and output_linear of `block_sparse_moe`, as Granite has them

become X's `experts.N.PART.weight` and `experts.N.PART.bias`. Where a family names gates and ups apart (Qwen3.5),

    X         (experts, rows, columns) in full, gates above ups

becomes `experts.N.gate_proj.weight`, `up_proj` and `down_proj`, as other checkpoints of it have them.
Source: OCP Microscaling Formats 1.0, 2023.
"""

import functools
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.quantized import MXFP4
from kvasir_runtime.weights.checkpoint_tensor import CheckpointTensor, expect_dtype, whole
from kvasir_runtime.weights.e2m1 import GroupScales, matrix

_STACKED: Final = re.compile(r"(.+\.experts)\.(\w+?)(_blocks|_scales|_bias)?$")
_GRANITE: Final = re.compile(r"(.+\.block_sparse_moe)\.(input_linear|output_linear)\.weight")
_GRANITE_PARTS: Final = {"input_linear": "gate_up_proj", "output_linear": "down_proj"}
_MOST_EXPERTS: Final = 4096
"""In one tensor: several times what any published model has."""
_SCALES_READ: Final = 4
"""Tensors whose scales are held while pieces of several come in turn."""


def apart(stored: Iterable[CheckpointTensor], names: Container[str] = ()) -> list[CheckpointTensor]:
    """Tensors with those of all experts as one for each. names: what the family's places name. Raises ModelError."""
    named = {one.name: one for one in stored}
    read = functools.lru_cache(maxsize=_SCALES_READ)(whole)
    found = list[CheckpointTensor]()
    for name, one in named.items():
        if rows := _GRANITE.fullmatch(name):
            found += _by_rows(one, f"{rows[1]}.experts", _GRANITE_PARTS[rows[2]])
            continue
        match = _STACKED.fullmatch(name)
        if match is None or match[2] == "weight":
            found.append(one)
        elif match[3] == "_blocks":
            found += _packed(named, one, read)
        elif match[3] == "_bias":
            found += _biases(one, *match.group(1, 2))
        elif match[3] is None and f"{match[1]}.0.gate_proj.weight" in names:
            found += _by_halves(one, match[1]) if match[2] == "gate_up_proj" else _by_rows(one, *match.group(1, 2))
        elif match[3] is None:
            found += _in_full(one, *match.group(1, 2))
        elif f"{match[1]}.{match[2]}_blocks" not in named:
            raise ModelError(f"{one.path}: tensor {name} has no {match[2]}_blocks beside it")
    return found


def _packed(
    named: Mapping[str, CheckpointTensor], blocks: CheckpointTensor, read: "functools._lru_cache_wrapper[Tensor]"
) -> Iterator[CheckpointTensor]:
    stem = blocks.name.removesuffix("_blocks")
    scales = named.get(f"{stem}_scales")
    if scales is None:
        raise ModelError(f"{blocks.path}: tensor {blocks.name} has no {stem}_scales beside it")
    for one in (blocks, scales):
        expect_dtype(one, torch.uint8)
    shape = blocks.shape
    if len(shape) != 4 or shape[3] != MXFP4.group // 2 or scales.shape != shape[:3]:
        raise ModelError(
            f"{blocks.path}: tensor {blocks.name} has shape {list(shape)} and its scales {list(scales.shape)},"
            f" expected [experts, rows, groups, {MXFP4.group // 2}] and [experts, rows, groups]"
        )
    _, rows, groups, _ = shape
    name, _, part = stem.rpartition(".")
    for index, one in enumerate(_slices(blocks, name, part, "weight", (rows, groups * MXFP4.group))):
        of_expert = functools.partial(_scales, read, scales, index)
        yield matrix(one, GroupScales(format=MXFP4, rows=of_expert, name=f"{scales.path}: tensor {scales.name}"))


def _in_full(stored: CheckpointTensor, stem: str, part: str) -> Iterator[CheckpointTensor]:
    dtype = stored.dtype
    if len(stored.shape) != 3 or dtype is None or not dtype.is_floating_point:
        raise ModelError(
            f"{stored.path}: tensor {stored.name} has shape {list(stored.shape)}, expected [experts, columns, rows]"
        )
    _, columns, rows = stored.shape
    for one in _slices(stored, stem, part, "weight", (rows, columns)):
        yield replace(one, by_columns=True, decoded=functools.partial(_turned, dtype, rows))


def _by_rows(stored: CheckpointTensor, stem: str, part: str) -> Iterator[CheckpointTensor]:
    dtype = stored.dtype
    if len(stored.shape) != 3 or dtype is None or not dtype.is_floating_point:
        raise ModelError(
            f"{stored.path}: tensor {stored.name} has shape {list(stored.shape)}, expected [experts, rows, columns]"
        )
    for one in _slices(stored, stem, part, "weight", stored.shape[1:]):
        yield replace(one, dtype=dtype, decoded=functools.partial(_rows, dtype, stored.shape[2]))


def _by_halves(stored: CheckpointTensor, stem: str) -> Iterator[CheckpointTensor]:
    for both in _by_rows(stored, stem, "gate_up_proj"):
        rows, columns = both.shape
        if rows % 2:
            raise ModelError(f"{stored.path}: tensor {stored.name} has {rows} rows of gates and ups, expected pairs")
        half, expert = both.num_bytes // 2, both.name.removesuffix("gate_up_proj.weight")
        for place, part in enumerate(("gate_proj", "up_proj")):
            name, start = f"{expert}{part}.weight", both.start + place * half
            yield replace(both, name=name, shape=(rows // 2, columns), start=start, num_bytes=half)


def _biases(stored: CheckpointTensor, stem: str, part: str) -> Iterator[CheckpointTensor]:
    dtype = stored.dtype
    if len(stored.shape) != 2 or dtype is None:
        raise ModelError(
            f"{stored.path}: tensor {stored.name} has shape {list(stored.shape)}, expected [experts, rows]"
        )
    for one in _slices(stored, stem, part, "bias", stored.shape[1:]):
        yield replace(one, dtype=dtype, decoded=functools.partial(_viewed, dtype))


def _slices(
    stored: CheckpointTensor, stem: str, part: str, kind: str, shape: tuple[int, ...]
) -> Iterator[CheckpointTensor]:
    experts = stored.shape[0]
    if not all(stored.shape) or experts > _MOST_EXPERTS:
        raise ModelError(
            f"{stored.path}: tensor {stored.name} has shape {list(stored.shape)}, expected 1 to {_MOST_EXPERTS} experts"
            " that are not empty"
        )
    num_bytes = stored.num_bytes // experts
    for index in range(experts):
        name, start = f"{stem}.{index}.{part}.{kind}", stored.start + index * num_bytes
        yield replace(stored, name=name, shape=shape, start=start, num_bytes=num_bytes, dtype=None)


def _scales(
    read: "functools._lru_cache_wrapper[Tensor]", scales: CheckpointTensor, index: int, first: int, count: int
) -> Tensor:
    """Of some rows of one expert: (count, groups) uint8."""
    return read(scales)[index, first : first + count]


def _turned(dtype: torch.dtype, rows: int, raw: Tensor, count: int) -> Tensor:
    """So many columns, of all rows."""
    return raw.view(dtype).view(count, rows).T


def _rows(dtype: torch.dtype, columns: int, raw: Tensor, count: int) -> Tensor:
    return raw.view(dtype).view(count, columns)


def _viewed(dtype: torch.dtype, raw: Tensor, _: int) -> Tensor:
    return raw.view(dtype)
