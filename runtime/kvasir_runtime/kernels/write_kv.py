"""Scatter new keys and values into the paged cache, in place.

    for t in tokens:
        cache[0, slots[t] / block_size, slots[t] % block_size] = key[t]
        cache[1, slots[t] / block_size, slots[t] % block_size] = value[t]

key, value: (tokens, kv_heads, head_dim), cache dtype, contiguous in head_dim
cache:      (2, num_blocks, block_size, kv_heads, head_dim), contiguous; slots: (tokens,) int64, all different
Exact: no arithmetic is done. Layout after Kwon et al. 2023, section 4; keys and values of consecutive blocks are each
one slice, which is what lets a CPU read a sequence's cache without gathering it.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def reference(key: Tensor, value: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Write every token's key and value to its slot."""
    flat = cache.flatten(1, 2)
    flat[0].index_copy_(0, slots, key)
    flat[1].index_copy_(0, slots, value)


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """Scattered slots, one token and many."""
    for tokens in (1, 5, 40):
        key, value = torch.randn(2, tokens, 2, 8, generator=generator).unbind(0)
        yield key, value, torch.zeros(2, 6, 8, 2, 8), torch.randperm(48, generator=generator)[:tokens]
