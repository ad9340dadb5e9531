"""Which steps are replayed from a captured graph, and of what size: decided from the plan, with the reason if not.

Called by `step_graphs` once a step. Steps in which each sequence computes one token have graphs by the number of
sequences; others, which compute prompts too, by the number of tokens. A step is padded to the next size that is
captured, which costs less than another capture as long as a step's time is that of reading the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from kvasir_runtime.core.plan import Chunk

SamplingKind = Literal["greedy", "plain", "filtered", "edited", "special"]
"""greedy: argmax; plain: temperature alone; filtered: top_k, top_p or min_p too; edited: logits that requests
change; special: grammars and logprobs."""
GraphOutput = Literal["greedy", "plain", "filtered", "hidden"]
"""What a graph gives: ids that were sampled so, or hidden states, where sampling is more than a graph can hold."""

MAX_GRAPH_ROWS: Final = 512
"""Of the largest graph. From there on a step's products are bound by arithmetic, which hides the launches."""
MIXED_TOKENS: Final = (32, 64, 128, 192, 256, 384, 512)
"""Tokens of graphs for steps that compute prompts too; more of them are bound by arithmetic, as above."""
CAPTURED_AT_START: Final[tuple[GraphOutput, ...]] = ("greedy", "filtered", "hidden")
OUTPUTS: Final[dict[SamplingKind, tuple[GraphOutput, ...]]] = {
    "greedy": ("greedy",),
    "plain": ("plain", "filtered"),
    "filtered": ("filtered",),
    "edited": ("hidden",),
    "special": ("hidden",),
}
"""The outputs that serve each kind of sampling, the one with the least work first."""


@dataclass(frozen=True, slots=True)
class GraphKey:
    """One graph: the most sequences that it computes, and its output. tokens: of all of them, 0 where each has one."""

    size: int
    output: GraphOutput
    tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that it computes, padding included."""
        return self.tokens or self.size


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """key: the graph to replay, None for a step that is launched operation by operation; reason: why."""

    key: GraphKey | None
    reason: str = ""


@dataclass(slots=True)
class CapturedKeys:
    """The keys of captured graphs, by output: those of one token each, and the others, both by size."""

    single: dict[GraphOutput, list[GraphKey]] = field(default_factory=dict)
    mixed: dict[GraphOutput, list[GraphKey]] = field(default_factory=dict)

    def add(self, key: GraphKey) -> None:
        """A graph was captured."""
        keys = (self.mixed if key.tokens else self.single).setdefault(key.output, [])
        keys.append(key)
        keys.sort(key=lambda one: one.num_tokens)

    def choose(self, chunks: Sequence[Chunk], kind: SamplingKind) -> GraphChoice:
        """The smallest captured graph that holds a step."""
        num_tokens = 0
        has_single_tokens = True
        for chunk in chunks:
            num_tokens += chunk.num_tokens
            if chunk.num_tokens > 1 or not chunk.samples:
                has_single_tokens = False
            if chunk.scores[0] < chunk.scores[1] or chunk.pools[0] < chunk.pools[1]:
                return GraphChoice(None, "more than the last token of a sequence is wanted")
        captured = self.single if has_single_tokens else self.mixed
        largest = None
        for output in OUTPUTS[kind]:
            for key in captured.get(output, ()):
                if key.size >= len(chunks) and key.num_tokens >= num_tokens:
                    return GraphChoice(key)
                largest = key
        if largest is None:
            return GraphChoice(None, "no graph is captured for such a step")
        what = f"{len(chunks)} sequences with {num_tokens} tokens"
        return GraphChoice(
            None, f"{what} are more than the {largest.size} with {largest.num_tokens} of the largest graph"
        )


def sizes(max_sequences: int) -> tuple[int, ...]:
    """Sizes of graphs, ascending: 1, 2, 4, then 12 to 33 % apart, and the largest step that there can be.

    With 256 sequences 19 sizes; a padded row costs what a row costs in products, and one position in attention.
    """
    most = min(max_sequences, MAX_GRAPH_ROWS)
    steps = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, 256, 32), *range(256, MAX_GRAPH_ROWS + 1, 64)]
    return (*(size for size in steps if size < most), most)


def all_keys(max_sequences: int, max_tokens: int) -> tuple[tuple[GraphKey, ...], tuple[GraphKey, ...]]:
    """The graphs that are captured before the first request, and those that are captured when nothing is served.

    max_tokens: of a step, and of a sequence. Steps of one token each come first, as they are the most frequent; of both
    kinds the largest, so that the others reuse its memory. The first list has powers of two, so that no step is padded
    to more than twice its size, and the largest.
    """
    rows = sizes(max_sequences)
    tokens = [count for count in MIXED_TOKENS if count <= max_tokens]
    every = [GraphKey(size, output) for size in reversed(rows) for output in (*CAPTURED_AT_START, "plain")]
    every += [
        GraphKey(min(count, rows[-1]), output, count) for count in reversed(tokens) for output in CAPTURED_AT_START
    ]
    first = [
        key
        for key in every
        if key.output in CAPTURED_AT_START and _is_first(key.num_tokens, tokens[-1] if key.tokens else rows[-1])
    ]
    return tuple(first), tuple(key for key in every if key not in first)


def _is_first(size: int, largest: int) -> bool:
    return size == largest or size & (size - 1) == 0
