"""Which steps are replayed from a recorded graph, and of what size: decided from the plan, with the reason if not.

Called by `decode_graphs` once a step. A step is recorded once for each size and way of drawing; a smaller step is
padded to the next size, which costs less than another recording as long as a step's time is that of reading the
weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kvasir_runtime.core.plan import Chunk

SamplingKind = Literal["greedy", "plain", "filtered", "special"]
"""greedy: argmax; plain: noise alone; filtered: top_k, top_p or min_p too; special: anything beyond that."""
GraphEnd = Literal["greedy", "plain", "filtered", "hidden"]
"""What a graph ends with: ids that were drawn so, or hidden states whose draw is more than a graph can hold."""

MOST: Final = 512
"""Rows of the largest graph. From there on a step's products are bound by arithmetic, and launches are hidden by it."""
FIRST: Final[tuple[GraphEnd, ...]] = ("greedy", "filtered", "hidden")
SMALL: Final = 8


@dataclass(frozen=True, slots=True)
class GraphKey:
    """One recording: rows that it computes, and what it ends with."""

    size: int
    part: GraphEnd


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """key: the recording to replay, None for a step that is launched operation by operation; reason: why that."""

    key: GraphKey | None
    reason: str = ""


def sizes(max_sequences: int) -> tuple[int, ...]:
    """Sizes of recordings, ascending: 1, 2, 4, then 12 to 33 % apart, and the largest step that there can be.

    With 256 sequences 19 sizes; a padded row costs what a row costs in products, and one position in attention.
    """
    most = min(max_sequences, MOST)
    steps = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, MOST + 1, 64)]
    return (*(size for size in steps if size < most), most)


def recording(chunks: Sequence[Chunk], draw: SamplingKind, available: Sequence[int]) -> GraphChoice:
    """The recording of a step: every chunk computes one token and samples, and there is a size for so many of them.

    available: ascending.
    """
    if not available:
        return GraphChoice(None, "no sizes are recorded")
    if len(chunks) > available[-1]:
        return GraphChoice(None, f"{len(chunks)} sequences are more than the {available[-1]} of the largest graph")
    for chunk in chunks:
        if chunk.num_tokens > 1:
            return GraphChoice(None, "a prompt is computed")
        if not chunk.samples:
            return GraphChoice(None, "a token is computed that is not the last")
        if chunk.scores[0] < chunk.scores[1] or chunk.pools[0] < chunk.pools[1]:
            return GraphChoice(None, "more than the last token of a sequence is wanted")
    size = next(size for size in available if size >= len(chunks))
    return GraphChoice(GraphKey(size, "hidden" if draw == "special" else draw))


def at_start(available: Sequence[int]) -> tuple[GraphKey, ...]:
    """What is recorded before the first request, largest first, so that the others find room in the memory of these.

    The largest size and the small ones, where a launch of each operation would cost most; the rest when first wanted.
    """
    chosen = [size for size in reversed(available) if size == available[-1] or size <= SMALL]
    return tuple(GraphKey(size, part) for size in chosen for part in FIRST)
