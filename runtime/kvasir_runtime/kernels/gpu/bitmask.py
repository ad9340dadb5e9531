"""Masks of allowed ids where the logits are: a word is read for its 32 ids, and only what is forbidden is written."""

import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.options import options

_BLOCK = 4096


def launch(logits: Tensor, masks: Tensor, slots: Tensor) -> None:
    """kernels.bitmask."""
    rows, vocab = logits.shape
    if not masks.shape[0]:
        return
    block = min(_BLOCK, triton.next_power_of_2(vocab))
    _forbid[(rows, -(-vocab // block))](
        logits, masks, slots, vocab, masks.shape[1], logits.stride(0), masks.stride(0), BLOCK=block, **options(block)
    )


@triton.jit(do_not_specialize=["vocab", "words"])
def _forbid(logits, masks, slots, vocab, words, row_stride, mask_stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(masks + slot * mask_stride + ids // 32, mask=ids // 32 < words, other=0)
    forbidden = ((word >> (ids % 32)) & 1) == 0
    tl.store(logits + row * row_stride + ids, float("-inf"), mask=forbidden & (ids < vocab))
