"""Which steps are replayed, and at which size: tables."""

import pytest

from kvasir_runtime.core.plan import Chunk
from kvasir_runtime.runner.graphs import cudagraph_sizes
from kvasir_runtime.runner.graphs.cudagraph_sizes import CapturedKeys, GraphChoice, GraphKey


def decode(count: int, **changes: object) -> list[Chunk]:
    chunks = [Chunk(row=row, start=9, num_tokens=1, samples=True) for row in range(count)]
    if changes:
        chunks[-1] = Chunk(**{"row": 99, "start": 9, "num_tokens": 1, "samples": True, **changes})  # type: ignore[arg-type]
    return chunks


@pytest.mark.parametrize(
    ("max_sequences", "want"),
    [
        (1, (1,)),
        (3, (1, 2, 3)),
        (8, (1, 2, 4, 8)),
        (20, (1, 2, 4, 8, 16, 20)),
        (64, (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)),
        (256, (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256)),
    ],
)
def test_sizes_end_with_the_largest_step(max_sequences: int, want: tuple[int, ...]) -> None:
    assert cudagraph_sizes.sizes(max_sequences) == want


def test_no_size_is_larger_than_pays() -> None:
    assert cudagraph_sizes.sizes(4096)[-3:] == (384, 448, 512)


def captured(*keys: GraphKey) -> CapturedKeys:
    made = CapturedKeys()
    for key in keys:
        made.add(key)
    return made


EVERY = captured(
    *(GraphKey(size, output) for output in ("hidden", "filtered", "greedy") for size in (8, 4, 1, 2)),
    GraphKey(4, "plain"),
    *(GraphKey(min(count, 8), output, count) for output in ("greedy", "filtered", "hidden") for count in (64, 32)),
)
MORE = "more than the last token of a sequence is wanted"


@pytest.mark.parametrize(
    ("chunks", "draw", "want"),
    [
        (decode(1), "greedy", GraphChoice(GraphKey(1, "greedy"))),
        (decode(3), "greedy", GraphChoice(GraphKey(4, "greedy"))),
        (decode(3), "plain", GraphChoice(GraphKey(4, "plain"))),
        (decode(5), "plain", GraphChoice(GraphKey(8, "filtered"))),  # the one that does only that is not captured yet
        (decode(5), "filtered", GraphChoice(GraphKey(8, "filtered"))),
        (decode(2), "special", GraphChoice(GraphKey(2, "hidden"))),
        (
            decode(9),
            "greedy",
            GraphChoice(None, "9 sequences with 9 tokens are more than the 8 with 8 of the largest graph"),
        ),
        (decode(2, num_tokens=2), "greedy", GraphChoice(GraphKey(8, "greedy", 32))),
        (decode(8, num_tokens=26), "special", GraphChoice(GraphKey(8, "hidden", 64))),
        (decode(1, num_tokens=64), "plain", GraphChoice(GraphKey(8, "filtered", 64))),
        (
            decode(9, num_tokens=2),
            "greedy",
            GraphChoice(None, "9 sequences with 10 tokens are more than the 8 with 64 of the largest graph"),
        ),
        (
            decode(1, num_tokens=65),
            "greedy",
            GraphChoice(None, "1 sequences with 65 tokens are more than the 8 with 64 of the largest graph"),
        ),
        (decode(2, samples=False), "greedy", GraphChoice(GraphKey(8, "greedy", 32))),
        (decode(2, scores=(3, 4)), "special", GraphChoice(None, MORE)),
        (decode(2, pools=(9, 10)), "greedy", GraphChoice(None, MORE)),
    ],
)
def test_a_step_takes_the_smallest_graph_that_holds_it(
    chunks: list[Chunk], draw: cudagraph_sizes.SamplingKind, want: GraphChoice
) -> None:
    assert EVERY.choose(chunks, draw) == want


def test_without_graphs_nothing_is_replayed() -> None:
    assert CapturedKeys().choose(decode(1), "greedy") == GraphChoice(None, "no graph is captured for such a step")


def test_powers_of_two_and_the_largest_are_captured_at_start_and_the_rest_later() -> None:
    first, rest = cudagraph_sizes.all_keys(24, 200)
    assert [(key.size, key.tokens) for key in first if key.output == "greedy"] == [
        *((size, 0) for size in (24, 16, 8, 4, 2, 1)),
        *((24, count) for count in (192, 128, 64, 32)),
    ]
    assert {key.output for key in first} == {"greedy", "filtered", "hidden"}
    assert {key.size for key in rest if not key.tokens} == {24, 16, 8, 4, 2, 1}
    assert {key.output for key in rest} == {"plain"}
    first, rest = cudagraph_sizes.all_keys(256, 8192)
    assert {key.tokens for key in rest if key.output == "greedy"} == {0, 192, 384}
    assert not set(first) & set(rest)
    assert len({*first, *rest}) == len(first) + len(rest) == 4 * 19 + 3 * 7


def test_a_sequence_is_not_padded_beyond_what_a_row_holds() -> None:
    first, rest = cudagraph_sizes.all_keys(4, 31)
    assert not any(key.tokens for key in (*first, *rest))
