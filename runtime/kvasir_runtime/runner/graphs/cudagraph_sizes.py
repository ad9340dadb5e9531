"""Which steps are replayed from a captured graph, and of what size: decided from the plan, with the reason if not.

Called by `decode_graphs` once a step. A step is captured once for each size and output; a smaller step is
padded to the next size, which costs less than another capture as long as a step's time is that of reading the
weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kvasir_runtime.core.plan import Chunk

SamplingKind = Literal["greedy", "plain", "filtered", "special"]
"""greedy: argmax; plain: temperature alone; filtered: top_k, top_p or min_p too; special: anything beyond that."""
GraphOutput = Literal["greedy", "plain", "filtered", "hidden"]
"""What a graph gives: ids that were sampled so, or hidden states, where sampling is more than a graph can hold."""

MAX_GRAPH_ROWS: Final = 512
"""Of the largest graph. From there on a step's products are bound by arithmetic, which hides the launches."""
CAPTURED_AT_START: Final[tuple[GraphOutput, ...]] = ("greedy", "filtered", "hidden")
MAX_SMALL_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class GraphKey:
    """One graph: the number of rows that it computes, and its output."""

    size: int
    output: GraphOutput


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """key: the graph to replay, None for a step that is launched operation by operation; reason: why."""

    key: GraphKey | None
    reason: str = ""


def sizes(max_sequences: int) -> tuple[int, ...]:
    """Sizes of graphs, ascending: 1, 2, 4, then 12 to 33 % apart, and the largest step that there can be.

    With 256 sequences 19 sizes; a padded row costs what a row costs in products, and one position in attention.
    """
    most = min(max_sequences, MAX_GRAPH_ROWS)
    steps = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, MAX_GRAPH_ROWS + 1, 64)]
    return (*(size for size in steps if size < most), most)


def choose_graph(chunks: Sequence[Chunk], kind: SamplingKind, available: Sequence[int]) -> GraphChoice:
    """The graph of a step in which every chunk computes one token and samples, if there is a size for that many.

    available: sizes, ascending.
    """
    if not available:
        return GraphChoice(None, "no sizes are captured")
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
    return GraphChoice(GraphKey(size, "hidden" if kind == "special" else kind))


def at_start(available: Sequence[int]) -> tuple[GraphKey, ...]:
    """What is captured before the first request, largest first, so that the others reuse its memory.

    The largest size and the small ones, where a launch of each operation would cost most; the rest at first use.
    """
    chosen = [size for size in reversed(available) if size == available[-1] or size <= MAX_SMALL_ROWS]
    return tuple(GraphKey(size, output) for size in chosen for output in CAPTURED_AT_START)
