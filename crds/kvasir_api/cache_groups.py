"""Cache groups: which layers share the blocks of a KV cache, and which blocks a sequence still needs.

Layers of the same attention form groups of equally many layers, so that a block of every group has the same bytes and
all groups draw on one pool. A sequence has one block table for each group. Pure arithmetic, used by the forecast, the
scheduler and the runner, so that there is one count. Grouping after vLLM's hybrid KV cache manager (2025).
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

import msgspec

AttentionKind = Literal["full", "window", "chunked", "latent", "state", "bidirectional"]

MAX_GROUPS: Final = 8
"""Each group costs a block table for every sequence and step."""


class LayerAttention(msgspec.Struct, frozen=True):
    """What a token of a layer sees of the sequence before it, itself included.

    full, latent: everything (latent rows are compressed: the layer's row width says so). window: the last span
    positions. chunked: positions from the last multiple of span on. state: a state of fixed size behind the token
    before, which a block holds as of its last computed position. bidirectional: what comes behind it too, of the last
    and the next span positions, or of all where that is 0; a sequence is computed at once, and nothing of it is kept.
    span: in tokens, 0 for the other kinds.
    """

    kind: AttentionKind = "full"
    span: int = 0

    def __post_init__(self) -> None:
        if self.kind != "bidirectional" and (self.kind in ("window", "chunked")) != (self.span > 0):
            raise ValueError(f"attention {self.kind} with a span of {self.span} tokens")

    @property
    def window(self) -> int:
        """Its span where that slides with the token, else 0."""
        return self.span if self.kind == "window" else 0

    @property
    def chunk(self) -> int:
        """Its span where that begins at multiples of it, else 0."""
        return self.span if self.kind == "chunked" else 0

    @property
    def keeps_all(self) -> bool:
        """Whether every token of a sequence is needed to its end."""
        return self.kind in ("full", "latent", "bidirectional")

    def most_seen(self, num_tokens: float) -> float:
        """Positions whose keys and values a token reads as the last of so many, at most; a state has none."""
        if self.kind == "state":
            return 0
        seen = 2 * self.span + 1 if self.kind == "bidirectional" and self.span else self.span
        return min(num_tokens, seen) if seen else num_tokens

    def first_seen(self, position: int) -> int:
        """First position that the token at a position, and no later one, needs."""
        if self.kind == "window":
            return max(0, position - self.span + 1)
        if self.kind == "chunked":
            return position // self.span * self.span
        return max(0, position - 1) if self.kind == "state" else 0

    def left_at(self, end: int) -> int | None:
        """First position from which on no token needs any position before end; None where there is none."""
        if self.kind == "window":
            return end + self.span - 1
        if self.kind == "chunked":
            return -(-end // self.span) * self.span
        return end + 1 if self.kind == "state" else None

    def most_blocks(self, num_tokens: int, block_size: int, chunk_tokens: int) -> int:
        """Blocks that a sequence of so many tokens holds at once at most, computed in chunks of chunk_tokens.

        What the last token sees is held too, since it may be planned again.
        """
        columns = -(-num_tokens // block_size)
        if self.keeps_all:
            return columns
        if self.kind == "state":
            return min(columns, 3)
        return min(columns, -(-(self.span + chunk_tokens) // block_size) + 1)


class CacheGroup(msgspec.Struct, frozen=True):
    """Layers, by index, whose keys and values of the same tokens lie in the same block."""

    attention: LayerAttention
    layers: tuple[int, ...]


FULL: Final = LayerAttention()
BIDIRECTIONAL: Final = LayerAttention("bidirectional")


def sliding(window: int) -> LayerAttention:
    """A window of so many positions; 0 is none."""
    return LayerAttention("window", window) if window else FULL


def group_layers(attentions: Sequence[LayerAttention]) -> tuple[CacheGroup, ...]:
    """Cut the layers of each attention into groups of at most as many layers as every block has room for.

    That number wastes as little as possible of blocks that are kept to the end of a sequence, then of the others, and
    makes at most MAX_GROUPS groups where the kinds of attention permit. Layers that keep nothing are one group.
    """
    kinds: dict[LayerAttention, list[int]] = {}
    for layer, attention in enumerate(attentions):
        kinds.setdefault(BIDIRECTIONAL if attention.kind == "bidirectional" else attention, []).append(layer)
    size = _group_size({attention: len(layers) for attention, layers in kinds.items()})
    return tuple(
        CacheGroup(attention, tuple(layers[first : first + size]))
        for attention, layers in kinds.items()
        for first in range(0, len(layers), size)
    )


def bytes_per_token(
    attentions: Sequence[LayerAttention],
    layers: Sequence[int],
    *,
    token_bytes: int,
    state_bytes: int = 0,
    block_size: int = 1,
) -> int:
    """Bytes of one token of capacity, one in every group, with what blocks leave empty.

    attentions, layers: of each group, and how many it has. token_bytes: of one token in one layer. state_bytes: of one
    layer's state. A block holds block_size tokens, or a state.
    """
    state = -(-state_bytes // block_size)
    each = [state if attention.kind == "state" else token_bytes for attention in attentions]
    return len(attentions) * max(count * size for count, size in zip(layers, each, strict=True))


def least_block_size(*, token_bytes: int, state_bytes: int) -> int:
    """Tokens of a block in which a layer's keys and values take as much memory as a layer's state; 1 without a state.

    With fewer, blocks of keys and values would be empty for the most part. A multiple of 16.
    """
    return -(-state_bytes // (token_bytes * 16)) * 16 if state_bytes else 1


def blocks_of_sequence(
    attentions: Iterable[LayerAttention], num_tokens: int, *, block_size: int, chunk_tokens: int
) -> int:
    """Blocks over all groups that a sequence holds at once at most. attentions: one for each group."""
    return sum([attention.most_blocks(num_tokens, block_size, chunk_tokens) for attention in attentions])


def keeps_nothing(attentions: Iterable[LayerAttention]) -> bool:
    """Whether a model computes every sequence at once, and has no cache. attentions: of its layers or groups."""
    return all(attention.kind == "bidirectional" for attention in attentions)


def places(max_sequences: int, longest: int) -> int:
    """What stands for the capacity of a cache where a model has none: tokens of as many sequences as may run, each as
    long as any may be. So it bounds nothing, and takes no memory.
    """
    return max_sequences * longest


def longest_sequence(
    attentions: Sequence[LayerAttention], num_blocks: int, *, block_size: int, chunk_tokens: int, limit: int
) -> int:
    """Tokens of the longest sequence, at most limit, that so many blocks hold at every moment."""

    def fits(num_tokens: int) -> bool:
        needed = blocks_of_sequence(attentions, num_tokens, block_size=block_size, chunk_tokens=chunk_tokens)
        return needed <= num_blocks

    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _group_size(counts: dict[LayerAttention, int]) -> int:
    """Layers of a group. counts: layers of each attention."""

    def cost(size: int) -> tuple[bool, int, int, int]:
        groups = sum([-(-count // size) for count in counts.values()])
        padded = {attention: -count % size for attention, count in counts.items()}
        kept = sum([empty for attention, empty in padded.items() if attention.keeps_all])
        too_many = groups > max(MAX_GROUPS, len(counts))
        return too_many, kept, sum(padded.values()), groups

    return min(range(max(counts.values()), 0, -1), key=cost)
