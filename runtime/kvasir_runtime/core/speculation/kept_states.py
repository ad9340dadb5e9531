"""How many sequences of a model with a state have drafts in one step: their states are copied before it.

Pure arithmetic, for the scheduler that drafts, the runner that copies, and the start that counts the copies' memory.
"""

from collections.abc import Sequence
from typing import Final

from kvasir_api.cache_groups import LayerAttention

MOST_ROWS: Final = 8
MOST_BYTES: Final = 256 << 20
"""Of all copies, unless one sequence takes more."""


def most_drafts(computed: int, num_tokens: int, block_size: int) -> int:
    """Drafts that a chunk may have which computes the tokens from computed on: it ends in the block that it begins in,
    and before the border, where the state is kept for others, as of tokens that are certain. Of several blocks a chunk
    has the last alone, in which a shorter one behind a wrong draft would not end.
    """
    return max(0, block_size - 1 - computed % block_size - (num_tokens - computed))


def num_rows(attentions: Sequence[LayerAttention], block_bytes: int) -> int:
    """Sequences that may have drafts in a step. attentions: of the cache groups. block_bytes: 0 if not known."""
    row_bytes = block_bytes * num_blocks(attentions)
    return min(MOST_ROWS, max(1, MOST_BYTES // row_bytes)) if row_bytes else MOST_ROWS


def num_blocks(attentions: Sequence[LayerAttention]) -> int:
    """That are copied of one sequence: one in each group of layers with a state."""
    return sum([attention.kind == "state" for attention in attentions])


def num_bytes(attentions: Sequence[LayerAttention], block_bytes: int) -> int:
    """Of all copies; 0 without states."""
    return num_rows(attentions, block_bytes) * num_blocks(attentions) * block_bytes
