"""Penalties where the logits are: one pass over a row and its counts, and none for rows that ask for nothing."""

import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.options import options

_BLOCK = 2048


def launch(logits: Tensor, slots: Tensor, counts: Tensor, in_prompt: Tensor, strengths: Tensor) -> None:
    """kernels.penalties."""
    rows, vocab = logits.shape
    if not counts.shape[0]:
        return
    block = min(_BLOCK, triton.next_power_of_2(vocab))
    _penalise[(rows, -(-vocab // block))](
        logits, slots, counts, in_prompt, strengths, vocab, logits.stride(0), counts.stride(0), in_prompt.stride(0),
        BLOCK=block, **options(block),
    )  # fmt: skip


@triton.jit(do_not_specialize=["vocab"])
def _penalise(
    logits, slots, counts, in_prompt, strengths, vocab, row_stride, counts_stride, prompt_stride, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + row)
    if slot < 0:
        return
    ids = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = ids < vocab
    x = tl.load(logits + row * row_stride + ids, mask=mask, other=0.0)
    count = tl.load(counts + slot * counts_stride + ids, mask=mask, other=0)
    known = tl.load(in_prompt + slot * prompt_stride + ids, mask=mask, other=0)
    repetition = tl.load(strengths + slot * 3)
    frequency = tl.load(strengths + slot * 3 + 1)
    presence = tl.load(strengths + slot * 3 + 2)
    said = count > 0
    scaled = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    x = tl.where(said | (known != 0), scaled, x)
    x -= frequency * count.to(tl.float32) + tl.where(said, presence, 0.0)
    tl.store(logits + row * row_stride + ids, x, mask=mask)
