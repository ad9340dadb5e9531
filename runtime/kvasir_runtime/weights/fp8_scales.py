"""Checkpoints whose matrices are e4m3 with scales beside them: pairs the two, so that `load` sees one tensor.

Called by `load`. `X.weight` has `X.weight_scale` or `X.weight_scale_inv` beside it, both of which multiply: one number,
one for each row, or one for each block of 128 x 128. The scales are read at once, as they are small and any piece of
the matrix needs some. Scales of activations and of caches are left alone: activations are scaled by what they are,
token by token.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.quantized import FP8, QuantFormat, QuantizedWeight
from kvasir_runtime.weights.checkpoint_tensor import CheckpointTensor, StoredKind, expect_matrix, whole

BLOCK: Final = 128
SCALES: Final = ("_scale", "_scale_inv")
UNUSED: Final = (".input_scale", ".output_scale", ".k_scale", ".v_scale", ".q_scale")
BY_ROW, BY_BLOCK = FP8, replace(FP8, group=BLOCK)
_CUT: Final = StoredKind(name="fp8 by blocks that the rows cut")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scales:
    """values: (blocks of rows, blocks of columns) where the format has groups, else (rows, 1); float32."""

    values: Tensor
    format: QuantFormat

    def rows(self, first: int, count: int) -> Tensor:
        """Of some rows: (count, groups)."""
        if self.format.by_row:
            return self.values[first : first + count]
        return self.values.index_select(0, torch.arange(first, first + count) // BLOCK)


def joined(stored: Iterable[CheckpointTensor]) -> list[CheckpointTensor]:
    """Tensors without those that are scales, which are in the tensors that they scale. Raises ModelError."""
    named = {one.name: one for one in stored}
    scales = {name.removesuffix(ending): name for name in named for ending in SCALES if name.endswith(ending)}
    found = []
    for name, one in named.items():
        if name.endswith((*SCALES, *UNUSED)):
            continue
        if one.dtype != torch.float8_e4m3fn:
            found.append(one)
        elif name in scales:
            found.append(_scaled(one, named[scales[name]]))
        else:
            raise ModelError(f"{one.path}: tensor {name} has type F8_E4M3, and no {name}_scale is beside it")
    return found


def _scaled(weight: CheckpointTensor, scale: CheckpointTensor) -> CheckpointTensor:
    """A matrix that knows its scales; its format is ours where its columns are whole blocks."""
    scales = _read(weight, scale)
    kept = scales.format if scales.format.fits(weight.shape[1]) else None
    return replace(weight, kind=_kind(kept), part=functools.partial(_part, weight, scales, kept))


def _kind(kept: QuantFormat | None) -> StoredKind:
    return _CUT if kept is None else StoredKind(name=kept.name, format=kept)


def _part(
    weight: CheckpointTensor, scales: _Scales, kept: QuantFormat | None, first: int, count: int
) -> CheckpointTensor:
    """Of some rows."""
    of = scales.rows(first, count)
    return replace(
        weight,
        decoded=functools.partial(_decoded, of),
        kind=_kind(kept),
        kept=functools.partial(_kept, of, kept) if kept is not None else None,
    )


def _kept(scales: Tensor, format_: QuantFormat, raw: Tensor, count: int) -> QuantizedWeight:
    values = raw.view(torch.float8_e4m3fn).view(count, -1)
    return QuantizedWeight(format=format_, values=values, scales=scales.to(raw.device), minima=None)


def _decoded(scales: Tensor, raw: Tensor, count: int) -> Tensor:
    values = raw.view(torch.float8_e4m3fn).view(count, -1)
    wide = scales.to(raw.device)
    if wide.shape[1] > 1:
        wide = wide.repeat_interleave(BLOCK, dim=1)[:, : values.shape[1]]  # the last block may be narrower
    return values.float() * wide


def _read(weight: CheckpointTensor, scale: CheckpointTensor) -> _Scales:
    """The scales of a matrix, in float32. Raises ModelError where their shape is none of the three."""
    expect_matrix(weight)
    rows, columns = weight.shape
    values = whole(scale).float()
    blocks = (-(-rows // BLOCK), -(-columns // BLOCK))
    if values.numel() == 1:
        return _Scales(values=values.view(1, 1).expand(rows, 1), format=BY_ROW)
    if values.shape in ((rows,), (rows, 1)):
        return _Scales(values=values.view(rows, 1), format=BY_ROW)
    if values.shape == blocks:
        return _Scales(values=values, format=BY_BLOCK)
    expected = f"[1], [{rows}, 1] or {list(blocks)}"
    raise ModelError(f"{scale.path}: tensor {scale.name} has shape {list(scale.shape)}, expected {expected}")
