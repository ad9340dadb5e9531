"""The KV cache in memory that a decoder, or a rank's part of one, needs. Called by `build` and `rank_worker`."""

from collections.abc import Sequence

import torch

from kvasir_runtime.kernels import kv_cache, kv_quant
from kvasir_runtime.kernels.kv_cache import BlockLayout, KvCache
from kvasir_runtime.layers.spec import DecoderSpec


def allocate_cache(
    spec: DecoderSpec,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device,
    groups: Sequence[Sequence[int]] | None = None,
) -> KvCache:
    """A KV cache of undefined content for a decoder, or for a rank's part. groups: by default the cache groups of spec.

    Raises as `kv_cache.allocate`.
    """
    if spec.encoder is not None:
        return kv_cache.empty(num_layers=spec.num_layers, num_blocks=num_blocks, block_size=block_size, device=device)
    return kv_cache.allocate(
        groups=groups or spec.cached_layers,
        layouts=layouts(spec, block_size, dtype),
        num_blocks=num_blocks,
        block_size=block_size,
        dtype=dtype,
        device=device,
    )


def layouts(spec: DecoderSpec, block_size: int, dtype: torch.dtype) -> list[BlockLayout]:
    """What a block of the cache holds of each layer of this process. dtype: of keys and values."""
    if spec.latent is not None:
        rows = kv_cache.latents(block_size=block_size, row=kv_quant.width(spec.latent.row, dtype), dtype=dtype)
    else:
        width = kv_quant.width(spec.head_dim, dtype)
        rows = kv_cache.keys_and_values(block_size=block_size, kv_heads=spec.num_kv_heads, row=width, dtype=dtype)
    state = kv_cache.state(block_size=block_size, numbers=spec.state.numbers) if spec.state is not None else rows
    return [state if spec.attentions[layer].kind == "state" else rows for layer in spec.layers]
