"""Norms of heads, rotation and the write to the cache in one kernel: the product is read once, nothing is kept between.

Where the cache has 8 bits the rows are rounded to them on the way; with 4 bits keys are kept behind the queries, and a
second kernel turns and packs whole rows. The bias is part of the product.

A program takes some heads of a token, be they of queries, keys or values, as two tiles: first and second halves.
"""

import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu import kv_quant, write_kv
from kvasir_runtime.kernels.gpu.kv_quant import INT4, INT8
from kvasir_runtime.kernels.gpu.options import options

_ELEMENTS = 2048


def launch(
    qkv: Tensor, norm: Tensor | None, eps: float, cos: Tensor, sin: Tensor, cache: Tensor, slots: Tensor
) -> Tensor:
    """kernels.split_qkv."""
    (tokens, all_heads, head), (block_size, kv_heads, row) = qkv.shape, cache.shape[2:]
    heads = all_heads - 2 * kv_heads
    padded = triton.next_power_of_2(head // 2)
    block = min(triton.next_power_of_2(all_heads), max(1, _ELEMENTS // (2 * padded)))
    kind = kv_quant.kind(cache)
    kept = heads + kv_heads if kind == INT4.value else heads
    query = qkv.new_empty((tokens, kept, head))
    _split_qkv[(tokens, -(-all_heads // block))](
        qkv, qkv if norm is None else norm, cos, sin, query, cache, kv_quant.scales(cache), slots, eps,
        *cache.stride()[:2],
        BLOCK_SIZE=block_size,
        HEADS=heads, KV_HEADS=kv_heads, HALF=head // 2, ROW=row, PADDED=padded, BLOCK=block, NORMED=norm is not None,
        KIND=kind, KEPT=kept, **options(2 * block * padded),
    )  # fmt: skip
    if kept > heads:
        write_kv.launch(query[:, heads:], qkv[:, kept:], cache, slots)
    return query[:, :heads]


@triton.jit(do_not_specialize_on_alignment=["slots"])
def _split_qkv(
    qkv, norm, cos, sin, query, cache, scales, slots, eps, values, block_stride,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HALF: tl.constexpr, ROW: tl.constexpr, PADDED: tl.constexpr,
    BLOCK: tl.constexpr, NORMED: tl.constexpr, KIND: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    rotated = head < HEADS + KV_HEADS
    dims = tl.arange(0, PADDED)
    inside = (dims < HALF)[None, :]
    mask = (head < HEADS + 2 * KV_HEADS)[:, None] & inside
    lanes = head[:, None] * (2 * HALF) + dims[None, :]
    source = qkv + token * ((HEADS + 2 * KV_HEADS) * 2 * HALF) + lanes
    first = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    second = tl.load(source + HALF, mask=mask, other=0.0).to(tl.float32)
    if NORMED:
        scale = tl.rsqrt((tl.sum(first * first, 1) + tl.sum(second * second, 1)) / (2 * HALF) + eps)
        scale = tl.where(rotated, scale, 1.0)[:, None]
        weighed = rotated[:, None] & inside
        first *= scale * tl.load(norm + lanes, mask=weighed, other=1.0).to(tl.float32)
        second *= scale * tl.load(norm + lanes + HALF, mask=weighed, other=1.0).to(tl.float32)
    angle = token * (2 * HALF) + HALF + dims  # the second half, where sin has its own sign
    c = tl.load(cos + angle, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    s = tl.load(sin + angle, mask=dims < HALF, other=0.0).to(tl.float32)[None, :]
    left = tl.where(rotated[:, None], first * c - second * s, first).to(query.dtype.element_ty)
    right = tl.where(rotated[:, None], second * c + first * s, second).to(query.dtype.element_ty)

    mine = (head < KEPT)[:, None] & inside
    target = query + token * (KEPT * 2 * HALF) + lanes
    tl.store(target, left, mask=mine)
    tl.store(target + HALF, right, mask=mine)
    if KIND == INT4:
        return
    # Heads behind the queries lie in the cache as they lie here: keys, then values a constant further.
    slot = tl.load(slots + token)
    if slot < 0:
        return
    kept = (head >= HEADS) & (head < HEADS + 2 * KV_HEADS)
    half = tl.where(rotated, 0, 1).to(tl.int64) * values
    place = slot // BLOCK_SIZE * block_stride + (slot % BLOCK_SIZE) * (KV_HEADS * ROW)
    place += half + (head - HEADS) % KV_HEADS * ROW
    most = head.to(tl.float32)  # read by INT8 alone
    if KIND == INT8:
        most = tl.maximum(kv_quant.most(left), kv_quant.most(right))
        tl.store(scales + (place + 2 * HALF) // 4, most / 127.0, mask=kept)
    target = cache + place[:, None] + dims[None, :]
    stored = kept[:, None] & inside
    tl.store(target, kv_quant.rounded(left, most, KIND, cache.dtype.element_ty), mask=stored)
    tl.store(target + HALF, kv_quant.rounded(right, most, KIND, cache.dtype.element_ty), mask=stored)
