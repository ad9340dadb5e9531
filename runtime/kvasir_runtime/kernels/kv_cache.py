"""The paged cache in memory: a block of all layers of a cache group is one contiguous piece, so that moving it is one
copy.

    blocks[b] = for each layer of a group: keys (block_size, kv_heads, row), values (block_size, kv_heads, row)
                or, where attention is latent: rows (block_size, row)
                or, where layers have a state: its numbers

blocks: (num_blocks, block_bytes) uint8, contiguous; any group may take any block, and one whose layers take less than
others' leaves the end of its blocks empty. A layer is a strided view of all blocks: with keys and values (2,
num_blocks, block_size, kv_heads, row) of the cache's type, row as in `kv_quant.width`; with latent rows the same with
one head, where both halves are the same memory; with a state (num_blocks, numbers) float32. Keys of a block are
contiguous, and so are its values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir_runtime.kernels import host_memory


@dataclass(frozen=True, slots=True)
class KvCache:
    """blocks and layers as in the module docstring; both are the same memory. groups: of each layer its cache group.
    num_groups: cache groups, each with a block table for every sequence. dtype: of keys and values.
    """

    blocks: Tensor
    layers: tuple[Tensor, ...]
    groups: tuple[int, ...]
    block_size: int
    num_groups: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLayout:
    """What a block holds of one layer. shape: of its numbers, keys before values. num_bytes: that they take in it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    num_bytes: int


def keys_and_values(*, block_size: int, kv_heads: int, row: int, dtype: torch.dtype) -> BlockLayout:
    """Of a layer with keys and values."""
    shape = (2, block_size, kv_heads, row)
    return BlockLayout(shape=shape, dtype=dtype, num_bytes=math.prod(shape) * dtype.itemsize)


def latents(*, block_size: int, row: int, dtype: torch.dtype) -> BlockLayout:
    """Of a layer with one compressed row for each token, which is its key and its value."""
    shape = (1, block_size, 1, row)
    return BlockLayout(shape=shape, dtype=dtype, num_bytes=math.prod(shape) * dtype.itemsize)


def state(*, block_size: int, numbers: int) -> BlockLayout:
    """Of a layer with a state, in whole bytes for each token of a block, as `cache_groups.bytes_per_token` counts."""
    return BlockLayout(shape=(numbers,), dtype=torch.float32, num_bytes=-(-4 * numbers // block_size) * block_size)


def allocate(
    *,
    groups: Sequence[Sequence[int]],
    layouts: Sequence[BlockLayout],
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> KvCache:
    """A cache of undefined content. groups: the layers of each cache group, by index, every layer in one of them.

    layouts: of each layer; of layers of a group the same. dtype: of keys and values. Raises RuntimeError or MemoryError
    where memory does not suffice.
    """
    block_bytes = max(len(layers) * layouts[layers[0]].num_bytes for layers in groups if layers)
    if torch.device(device).type == "cpu":
        blocks = host_memory.allocate(num_blocks * block_bytes).view(num_blocks, block_bytes)
    else:
        blocks = torch.empty((num_blocks, block_bytes), dtype=torch.uint8, device=device)
    at = {layer: (group, place) for group, layers in enumerate(groups) for place, layer in enumerate(layers)}
    views = tuple(_view(blocks, layout, at[layer][1]) for layer, layout in enumerate(layouts))
    return KvCache(blocks, views, tuple(at[layer][0] for layer in range(len(at))), block_size, len(groups), dtype)


def empty(*, num_layers: int, num_blocks: int, block_size: int, device: torch.device | str = "cpu") -> KvCache:
    """That of a model which keeps nothing: blocks without memory."""
    blocks = torch.empty((num_blocks, 0), dtype=torch.uint8, device=device)
    return KvCache(blocks, (), (0,) * num_layers, block_size, 1, torch.float32)


def _view(blocks: Tensor, layout: BlockLayout, place: int) -> Tensor:
    """The place-th layer of all blocks."""
    numbers, strides = blocks.view(layout.dtype), [1]
    for size in reversed(layout.shape[1:]):
        strides.insert(0, strides[0] * size)
    offset = place * layout.num_bytes // layout.dtype.itemsize
    view = numbers.as_strided((blocks.shape[0], *layout.shape), (numbers.stride(0), *strides), offset)
    return view if len(layout.shape) == 1 else view.transpose(0, 1).expand(2, -1, -1, -1, -1)
