"""Drawn ids behind the tokens of their rows, in one small launch."""

import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.options import options

_BLOCK = 256


def launch(ids: Tensor, rows: Tensor, ends: Tensor, tokens: Tensor, lens: Tensor) -> None:
    """kernels.append_ids."""
    draws = ids.shape[0]
    _append_ids[(-(-draws // _BLOCK),)](
        ids, rows, ends, tokens, lens, draws, lens.shape[0] - 1, tokens.stride(0), BLOCK=_BLOCK, **options(_BLOCK)
    )


@triton.jit(do_not_specialize=["draws", "padding_row"])
def _append_ids(ids, rows, ends, tokens, lens, draws, padding_row, tokens_stride, BLOCK: tl.constexpr):
    draw = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = draw < draws
    row = tl.load(rows + draw, mask=mask, other=0)
    end = tl.load(ends + draw, mask=mask, other=0)
    drawn = tl.load(ids + draw, mask=mask, other=0)
    tl.store(tokens + row * tokens_stride + end, tl.maximum(drawn, 0).to(tl.int32), mask=mask)
    tl.store(lens + row, tl.where(row < padding_row, end, 0), mask=mask)
