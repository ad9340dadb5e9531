"""Scatter new keys and values into the paged cache, in place.

    for t in tokens if slots[t] >= 0:
        cache[0, slots[t] / block_size, slots[t] % block_size] = key[t]
        cache[1, slots[t] / block_size, slots[t] % block_size] = value[t]

key, value: (tokens, kv_heads, head_dim), cache dtype, contiguous in head_dim
cache:      (2, num_blocks, block_size, kv_heads, head_dim), a layer of kernels.kv_cache, key's dtype; or a type of 8
            bits with rows as kernels.kv_quant has them, to which key and value are rounded
slots:      (tokens,) int64, all different but for those of padding, which are -1 and not written
Exact but for that: no arithmetic is done. Paging after Kwon et al. 2023, section 4.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from kvasir_runtime.kernels import kv_quant


def reference(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Write every token's key and value to its slot."""
    kept = slots >= 0
    if not bool(kept.all()):
        key, value, slots = key[kept], value[kept], slots[kept]
    size = cache.shape[2]
    for half, rows in zip(cache.unbind(0), (key, value), strict=True):
        _scatter(half, kv_quant.stored(rows, cache.dtype), slots // size, slots % size)


def _scatter(half: Tensor, rows: Tensor, blocks: Tensor, places: Tensor) -> None:
    if half.dtype == kv_quant.FLOAT8:  # which torch does not scatter on a CPU
        half, rows = half.view(torch.uint8), rows.view(torch.uint8)
    half.index_put_((blocks, places), rows)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Scattered slots, one token and many, with padding, a cache of the same type and those of fewer bits."""
    for tokens in (1, 5, 40):
        key, value = torch.randn(2, tokens, 2, 8, generator=generator).unbind(0)
        slots = torch.randperm(48, generator=generator)[:tokens]
        if tokens == 5:
            slots[1::3] = -1
        for dtype in (torch.float32, torch.int8, kv_quant.INT4, kv_quant.FLOAT8):
            yield key, value, torch.zeros(2, 6, 8, 2, kv_quant.width(8, dtype), dtype=dtype), slots
