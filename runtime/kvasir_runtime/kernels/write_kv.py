"""Scatter new keys and values into the paged cache, in place.

    for t in tokens:
        cache[0, slots[t] / block_size, slots[t] % block_size] = key[t]
        cache[1, slots[t] / block_size, slots[t] % block_size] = value[t]

key, value: (tokens, kv_heads, head_dim), cache dtype, contiguous in head_dim
cache:      (2, num_blocks, block_size, kv_heads, head_dim), contiguous, key's dtype; or int8 with rows as kernels.int8
            has them, to which key and value are rounded; slots: (tokens,) int64, all different
Exact but for that: no arithmetic is done. Layout after Kwon et al. 2023, section 4; keys and values of consecutive
blocks are each one slice, which is what lets a CPU read a sequence's cache without gathering it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from kvasir_runtime.kernels import int8


def reference(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Write every token's key and value to its slot."""
    flat = cache.flatten(1, 2)
    if cache.dtype == torch.int8:
        key, value = int8.quantise(key), int8.quantise(value)
    flat[0].index_copy_(0, slots, key)
    flat[1].index_copy_(0, slots, value)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Scattered slots, one token and many, a cache of the same type and one of 8 bits."""
    for tokens in (1, 5, 40):
        key, value = torch.randn(2, tokens, 2, 8, generator=generator).unbind(0)
        slots = torch.randperm(48, generator=generator)[:tokens]
        yield key, value, torch.zeros(2, 6, 8, 2, 8), slots
        yield key, value, torch.zeros(2, 6, 8, 2, 8 + int8.SCALE_BYTES, dtype=torch.int8), slots
