"""Copy whole blocks of the cache to other blocks, in all layers, in place.

    for layer, s, t in layers, zip(sources, targets):
        cache[layer, :, t] = cache[layer, :, s]

cache: (layers, 2, num_blocks, block_size, kv_heads, head_dim); sources, targets: (copies,) int64, no target twice and
none that is also a source. Exact.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def reference(cache: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy block sources[i] to targets[i]."""
    if cache.element_size() == 1:
        cache = cache.view(torch.uint8)  # torch copies floats of 8 bits by index on no processor
    cache.index_copy_(2, targets, cache.index_select(2, sources))


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """One and several copies, in floats of 32 and of 8 bits."""
    for pairs in (((0, 3),), ((0, 3), (1, 4), (0, 5))):
        sources, targets = torch.tensor(pairs).unbind(1)
        cache = torch.randn(2, 2, 6, 4, 2, 8, generator=generator)
        yield cache, sources, targets
        yield cache.to(torch.float8_e4m3fn), sources, targets
