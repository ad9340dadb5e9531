"""Copy whole blocks of the cache to other blocks, in place.

    for s, t in zip(sources, targets):
        blocks[t] = blocks[s]

blocks: (num_blocks, block_bytes) uint8, contiguous, as in kernels.kv_cache; sources, targets: (copies,) int64, no
target twice and none that is also a source. Exact.
"""

from collections.abc import Iterator

import torch
from torch import Tensor


def reference(blocks: Tensor, sources: Tensor, targets: Tensor) -> None:
    """Copy block sources[i] to targets[i]."""
    if blocks.shape[1] % 8 == 0:
        blocks = blocks.view(torch.int64)  # torch copies by index element by element
    blocks.index_copy_(0, targets, blocks.index_select(0, sources))


def cases(generator: torch.Generator) -> Iterator[tuple[object, ...]]:
    """One and several copies, of blocks that are whole words and that are not."""
    for pairs in (((0, 3),), ((0, 3), (1, 4), (0, 5))):
        sources, targets = torch.tensor(pairs).unbind(1)
        for block_bytes in (96, 97):
            yield torch.randint(0, 256, (6, block_bytes), generator=generator).to(torch.uint8), sources, targets
