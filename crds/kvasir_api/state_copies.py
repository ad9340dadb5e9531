"""Copies of the states of sequences with drafts, which are put back where a draft was wrong: how many there are at once,
and what they take.

Pure arithmetic, for the scheduler that drafts, the runner that copies, the start that counts the copies' memory, and the
forecast of it.
"""

from collections.abc import Sequence
from typing import Final

from kvasir_api.cache_groups import LayerAttention

MOST_ROWS: Final = 8
MOST_BYTES: Final = 256 << 20
"""Of all copies, unless one sequence takes more."""


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


def expected_bytes(
    attentions: Sequence[LayerAttention], block_bytes: int, speculation: str, *, on_cpu: bool, ranks: int
) -> int:
    """Of the copies that a replica will hold; 0 where its sequences have no drafts. ranks: that compute the model."""
    may_draft = speculation != "off" and on_cpu and ranks == 1
    return num_bytes(attentions, block_bytes) if may_draft else 0
