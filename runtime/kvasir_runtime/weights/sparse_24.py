"""Checkpoints of compressed-tensors that leave out the zeros of matrices with two of four numbers zero (2:4).

Pairs the tensors of a matrix, so that `load` sees one with its zeros. Called by it.

    X.compressed (rows, columns / 2)            the numbers that are kept, row by row; in e4m3 and int8 the scales of
                                                these lie beside them as beside a matrix without zeros left out
    X.bitmask    (rows, columns / 8) uint8      where they stand, the first column in the lowest bit
    X.shape      (2,)                           rows and columns
"""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.quantized import QuantizedWeight
from kvasir_runtime.weights.checkpoint_tensor import CheckpointTensor, expect_dtype, expect_matrix, whole

_PARTS: Final = (".compressed", ".bitmask", ".shape")
_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""What numbers of so many bytes are moved as."""
_FLOATING: Final = (torch.float16, torch.bfloat16, torch.float32)

Join = Callable[[list[CheckpointTensor]], list[CheckpointTensor]]


def joined(stored: Iterable[CheckpointTensor], join: Join) -> list[CheckpointTensor]:
    """Tensors with each matrix of 2:4 as one, under the name of the matrix. Raises ModelError.

    join: does the same with matrices and their scales; it is given matrices as if their zeros were in the file.
    """
    named = {one.name: one for one in stored}
    stems = {name.removesuffix(_PARTS[0]) for name in named if name.endswith(_PARTS[0])}
    parts = {stem + part for stem in stems for part in _PARTS}
    masks = {f"{stem.removesuffix('.weight')}.weight": _mask(named, stem) for stem in sorted(stems)}
    dense = [_dense(named[f"{stem}.compressed"], stem) for stem in sorted(stems)]
    found = join(dense + [one for name, one in named.items() if name not in parts])
    return [_filled(one, masks[one.name]) if one.name in masks else one for one in found]


def _mask(named: Mapping[str, CheckpointTensor], stem: str) -> CheckpointTensor:
    values, mask = named[stem + ".compressed"], named.get(stem + ".bitmask")
    if mask is None:
        raise ModelError(f"{values.path}: tensor {values.name} has no {stem}.bitmask beside it")
    for one in (values, mask):
        expect_matrix(one)
    expect_dtype(values, *_FLOATING, torch.float8_e4m3fn, torch.int8)
    expect_dtype(mask, torch.uint8)
    rows, kept = values.shape
    if mask.shape != (rows, kept // 4) or kept % 4:
        raise ModelError(f"{mask.path}: tensor {mask.name} has shape {list(mask.shape)}, expected {[rows, kept // 4]}")
    return mask


def _dense(values: CheckpointTensor, stem: str) -> CheckpointTensor:
    """The matrix as it were with its zeros, though its bytes are without them."""
    assert values.dtype is not None
    rows, columns = values.shape[0], 2 * values.shape[1]
    decoded = functools.partial(_viewed, values.dtype, columns)
    return replace(values, name=f"{stem.removesuffix('.weight')}.weight", shape=(rows, columns), decoded=decoded)


def _viewed(dtype: torch.dtype, columns: int, raw: Tensor, count: int) -> Tensor:
    return raw.view(dtype).view(count, columns)


def _filled(dense: CheckpointTensor, mask: CheckpointTensor) -> CheckpointTensor:
    """The matrix that reads its bytes with zeros put between them."""
    rows_of = dense.part or (lambda *_: dense)

    def part(first: int, count: int) -> CheckpointTensor:
        rows = rows_of(first, count)
        kept = rows.kept

        def kept_filled(raw: Tensor, number: int) -> QuantizedWeight:
            assert kept is not None
            return kept(_with_zeros(mask, first, raw, number), number)

        return replace(
            rows,
            part=None,
            decoded=lambda raw, number: rows.decoded(_with_zeros(mask, first, raw, number), number),
            kept=None if kept is None else kept_filled,
        )

    return replace(dense, dtype=None, part=part)


def _with_zeros(mask: CheckpointTensor, first: int, raw: Tensor, count: int) -> Tensor:
    """Bytes of whole rows. Raises ModelError where a row keeps more or fewer numbers than half of its columns."""
    bits = whole(mask.with_rows(first, count)).to(raw.device)
    places = ((bits.unsqueeze(2) >> torch.arange(8, device=raw.device)) & 1).flatten(1).bool()
    if bool((places.sum(dim=1) * 2 != places.shape[1]).any()):
        raise ModelError(f"{mask.path}: tensor {mask.name} does not keep half of the columns of each row")
    kept = raw.view(_WORDS[2 * raw.numel() // places.numel()])
    return kept.new_zeros(places.shape).masked_scatter_(places, kept).view(torch.uint8).flatten()
