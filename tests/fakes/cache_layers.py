"""A layer of a cache as the runner has it: a strided view of blocks that hold other layers too."""

import torch
from torch import Tensor

from kvasir_runtime.kernels import kv_cache
from kvasir_runtime.kernels.kv_cache import KvCache

FILL = 0x3A
"""Every byte of the layers beside: a number in each type, so that it shows where a kernel reads one."""


def cache_of(content: Tensor) -> KvCache:
    """content: (2, num_blocks, block_size, kv_heads, row), of the middle layer, latent if its halves are one."""
    _, num_blocks, block_size, kv_heads, row = content.shape
    if content.stride(0):
        layout = kv_cache.keys_and_values(block_size=block_size, kv_heads=kv_heads, row=row, dtype=content.dtype)
    else:
        layout = kv_cache.latents(block_size=block_size, row=row, dtype=content.dtype)
    made = kv_cache.allocate(
        groups=[range(3)],
        layouts=[layout] * 3,
        num_blocks=num_blocks,
        block_size=block_size,
        dtype=content.dtype,
        device=content.device,
    )
    made.blocks.fill_(FILL)
    bytes_of(made.layers[1])[0].copy_(bytes_of(content)[0])
    if content.stride(0):
        bytes_of(made.layers[1])[1].copy_(bytes_of(content)[1])
    return made


def layer_of(content: Tensor) -> Tensor:
    """The middle layer of `cache_of`."""
    return cache_of(content).layers[1]


def bytes_of(layer: Tensor) -> Tensor:
    """The same memory as integers, which compare and copy exactly in every type."""
    return layer.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[layer.element_size()])
