"""Keys and values into the paged cache where it is not part of `split_qkv`: a program takes one half of a token.

Latent rows, whose halves are the same memory, are written once.
"""

import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels import kv_int4
from kvasir_runtime.kernels.gpu import kv_quant
from kvasir_runtime.kernels.gpu.kv_quant import INT4, INT8
from kvasir_runtime.kernels.gpu.options import options


def launch(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
    """kernels.write_kv."""
    (tokens, kv_heads, head), (block_size, _, row) = key.shape, cache.shape[2:]
    padded_heads, padded = triton.next_power_of_2(kv_heads), triton.next_power_of_2(head)
    _write_kv[(tokens, 2 if cache.stride(0) else 1)](
        key, value, cache, kv_quant.scales(cache), slots, *key.stride()[:2], *value.stride()[:2],
        *cache.stride()[:2], BLOCK_SIZE=block_size,
        KV_HEADS=kv_heads, HEAD=head, ROW=row, PADDED_HEADS=padded_heads, PADDED=padded, KIND=kv_quant.kind(cache),
        LEVELS=kv_int4.levels(head), DOWN=kv_int4.down(head), **options(padded_heads * padded),
    )  # fmt: skip


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _write_kv(
    key, value, cache, scales, slots, key_stride, key_head_stride, value_stride, value_head_stride, values,
    block_stride, BLOCK_SIZE: tl.constexpr,
    KV_HEADS: tl.constexpr, HEAD: tl.constexpr, ROW: tl.constexpr, PADDED_HEADS: tl.constexpr, PADDED: tl.constexpr,
    KIND: tl.constexpr, LEVELS: tl.constexpr, DOWN: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    head, dims = tl.arange(0, PADDED_HEADS), tl.arange(0, PADDED)
    mask = (head < KV_HEADS)[:, None] & (dims < HEAD)[None, :]
    place = slot // BLOCK_SIZE * block_stride + (slot % BLOCK_SIZE) * (KV_HEADS * ROW) + head * ROW
    if tl.program_id(1) == 0:
        x = tl.load(key + token * key_stride + (head * key_head_stride)[:, None] + dims[None, :], mask=mask, other=0.0)
    else:
        place += values
        source = value + token * value_stride + (head * value_head_stride)[:, None]
        x = tl.load(source + dims[None, :], mask=mask, other=0.0)
    if KIND == INT4:
        x = kv_quant.hadamard(x.to(tl.float32), PADDED_HEADS, PADDED, LEVELS) * DOWN
        most = kv_quant.most(x)
        tl.store(scales + (place + HEAD // 2) // 4, most / 15.0, mask=head < KV_HEADS)
        pairs = tl.arange(0, PADDED // 2)
        stored = (head < KV_HEADS)[:, None] & (pairs < HEAD // 2)[None, :]
        tl.store(cache + place[:, None] + pairs[None, :], kv_quant.packed(x, most, PADDED_HEADS, PADDED), mask=stored)
        return
    most = head.to(tl.float32)  # read by INT8 alone
    if KIND == INT8:
        most = kv_quant.most(x)
        tl.store(scales + (place + HEAD) // 4, most / 127.0, mask=head < KV_HEADS)
    rows = kv_quant.rounded(x, most, KIND, cache.dtype.element_ty)
    tl.store(cache + place[:, None] + dims[None, :], rows, mask=mask)
