"""Checkpoints of compressed-tensors that leave out the zeros of matrices with two of four numbers zero (2:4).

Pairs the tensors of a matrix, so that `load` sees one, decoded. Called by it.

    X.compressed (rows, columns / 2)            the numbers that are kept, row by row
    X.bitmask    (rows, columns / 8) uint8      where they stand, the first column in the lowest bit
    X.shape      (2,)                           rows and columns
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.weights.checkpoint_tensor import CheckpointTensor, expect_dtype, expect_matrix, whole

_PARTS: Final = (".compressed", ".bitmask", ".shape")


def joined(stored: Iterable[CheckpointTensor]) -> list[CheckpointTensor]:
    """Tensors with each matrix of 2:4 as one, under the name of the matrix. Raises ModelError."""
    named = {one.name: one for one in stored}
    stems = {name.removesuffix(_PARTS[0]) for name in named if name.endswith(_PARTS[0])}
    parts = {stem + part for stem in stems for part in _PARTS}
    return [_dense(named, stem) for stem in sorted(stems)] + [one for name, one in named.items() if name not in parts]


def _dense(named: Mapping[str, CheckpointTensor], stem: str) -> CheckpointTensor:
    values, mask = named[stem + ".compressed"], named.get(stem + ".bitmask")
    if mask is None:
        raise ModelError(f"{values.path}: tensor {values.name} has no {stem}.bitmask beside it")
    for one in (values, mask):
        expect_matrix(one)
    expect_dtype(values, torch.float16, torch.bfloat16, torch.float32)
    expect_dtype(mask, torch.uint8)
    rows, kept = values.shape
    if mask.shape != (rows, kept // 4) or kept % 4:
        raise ModelError(f"{mask.path}: tensor {mask.name} has shape {list(mask.shape)}, expected {[rows, kept // 4]}")
    name = f"{stem.removesuffix('.weight')}.weight"
    dense = replace(values, name=name, shape=(rows, 2 * kept), dtype=None)
    return replace(dense, part=functools.partial(_part, dense, values, mask))


def _part(
    dense: CheckpointTensor, values: CheckpointTensor, mask: CheckpointTensor, first: int, _: int
) -> CheckpointTensor:
    """Of some rows."""
    return replace(dense, decoded=functools.partial(_decoded, values, mask, first))


def _decoded(values: CheckpointTensor, mask: CheckpointTensor, first: int, raw: Tensor, count: int) -> Tensor:
    """Raises ModelError where a row keeps more or fewer numbers than half of its columns."""
    kept = values.decoded(raw, count)
    bits = whole(mask)[first : first + count].to(raw.device)
    places = ((bits.unsqueeze(2) >> torch.arange(8, device=raw.device)) & 1).flatten(1).bool()
    if bool((places.sum(dim=1) != kept.shape[1]).any()):
        raise ModelError(f"{mask.path}: tensor {mask.name} does not keep half of the columns of each row")
    return kept.new_zeros(places.shape).masked_scatter_(places, kept)
