"""The paged cache in memory: a block of all layers of a cache group is one contiguous piece, so that moving it is one
copy.

    blocks[b] = for each layer of a group: keys (block_size, kv_heads, row), values (block_size, kv_heads, row)

blocks: (num_blocks, block_bytes) uint8, contiguous; any group may take any block, and one with fewer layers than others
leaves the end of its blocks empty. A layer is a strided view of all blocks, (2, num_blocks, block_size, kv_heads, row)
of the cache's type; row: `kv_quant.width`. Keys of a block are contiguous, and so are its values.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class KvCache:
    """blocks and layers as in the module docstring; both are the same memory. groups: of each layer its cache group."""

    blocks: Tensor
    layers: tuple[Tensor, ...]
    groups: tuple[int, ...]

    @property
    def num_groups(self) -> int:
        """Cache groups, each with a block table for every sequence."""
        return max(self.groups) + 1

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self.layers[0].dtype


def allocate(
    *,
    groups: Sequence[Sequence[int]],
    num_blocks: int,
    block_size: int,
    kv_heads: int,
    row: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> KvCache:
    """A cache of undefined content. groups: the layers of each cache group, by index, every layer in one of them.

    Raises RuntimeError or MemoryError where memory does not suffice.
    """
    half, room = block_size * kv_heads * row, max(map(len, groups))
    blocks = torch.empty((num_blocks, room * 2 * half * dtype.itemsize), dtype=torch.uint8, device=device)
    numbers = blocks.view(dtype)
    shape = (2, num_blocks, block_size, kv_heads, row)
    strides = (half, numbers.stride(0), kv_heads * row, row, 1)
    at = {layer: (group, place) for group, layers in enumerate(groups) for place, layer in enumerate(layers)}
    views = tuple(numbers.as_strided(shape, strides, 2 * half * at[layer][1]) for layer in range(len(at)))
    return KvCache(blocks, views, tuple(at[layer][0] for layer in range(len(at))))
