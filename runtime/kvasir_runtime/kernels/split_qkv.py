"""What lies between the projection to queries, keys and values and attention: norms of heads, rotation, the cache.

    for t in tokens:
        q, k, v = qkv[t, :heads], qkv[t, heads : heads + kv_heads], qkv[t, heads + kv_heads :]
        if norm is not None: q, k = rms_norm((q, k), norm, eps)          # kernels.rms_norm, per head
        out[t] = rope(q, cos[t], sin[t])                                # kernels.rope
        write_kv(rope(k, cos[t], sin[t]), v, cache, slots[t])           # kernels.write_kv

qkv:      (tokens, heads + 2 * kv_heads, head_dim), contiguous, bias included
norm:     (heads + kv_heads, head_dim) or None; cos, sin: (tokens, 1, head_dim), as for kernels.rope
cache:    (2, num_blocks, block_size, kv_heads, head_dim), or of fewer bits, as for kernels.write_kv
slots:    (tokens,) int64, -1 of padding, as for kernels.write_kv
out:      (tokens, heads, head_dim), contiguous in head_dim; values are copied exactly
Error as of norm and rotation together; a fused kernel rounds once where the three round four times.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from kvasir_runtime.kernels import kv_quant, rms_norm, rope, write_kv


def reference(
    qkv: Tensor, norm: Tensor | None, eps: float, cos: Tensor, sin: Tensor, cache: Tensor, slots: Tensor
) -> Tensor:
    """The three operations one after another."""
    kv_heads = cache.shape[3]
    heads = qkv.shape[1] - 2 * kv_heads
    query_key, value = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
    if norm is not None:
        query_key, _ = rms_norm.reference(query_key, None, norm, eps)
    query_key = rope.reference(query_key, cos, sin)
    write_kv.reference(query_key[:, heads:], value, cache, slots)
    return query_key[:, :heads]


def cpu(qkv: Tensor, norm: Tensor | None, eps: float, cos: Tensor, sin: Tensor, cache: Tensor, slots: Tensor) -> Tensor:
    """As reference, with the CPU's norm and rotation."""
    kv_heads = cache.shape[3]
    heads = qkv.shape[1] - 2 * kv_heads
    query_key, value = qkv[:, : heads + kv_heads], qkv[:, heads + kv_heads :]
    if norm is not None:
        query_key, _ = rms_norm.cpu(query_key, None, norm, eps)
    query_key = rope.cpu(query_key, cos, sin)
    write_kv.reference(query_key[:, heads:], value, cache, slots)
    return query_key[:, :heads]


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """One token and many, equal and grouped heads, widths that are no power of two, with and without norms,
    caches of the same type and of fewer bits, tokens of padding."""
    for tokens, heads, kv_heads, head_dim in ((1, 1, 1, 8), (5, 6, 2, 16), (19, 4, 4, 80)):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for normed in (False, True):
                qkv = torch.randn(tokens, heads + 2 * kv_heads, head_dim, generator=generator).to(dtype)
                norm = torch.randn(heads + kv_heads, head_dim, generator=generator).to(dtype) if normed else None
                angle = torch.randn(tokens, 1, head_dim // 2, generator=generator)
                cos, sin = torch.cat((angle.cos(),) * 2, dim=-1), torch.cat((-angle.sin(), angle.sin()), dim=-1)
                slots = torch.randperm(24, generator=generator)[:tokens]
                slots[2:3] = -1
                for cached in (dtype, torch.int8, kv_quant.INT4, kv_quant.FLOAT8):
                    cache = torch.zeros(2, 6, 4, kv_heads, kv_quant.width(head_dim, cached), dtype=cached)
                    yield qkv, norm, 1e-6, cos.to(dtype), sin.to(dtype), cache, slots
