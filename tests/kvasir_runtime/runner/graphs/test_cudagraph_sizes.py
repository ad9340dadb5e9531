"""Which steps are replayed, and at which size: tables."""

import pytest

from kvasir_runtime.core.plan import Chunk
from kvasir_runtime.runner.graphs import cudagraph_sizes
from kvasir_runtime.runner.graphs.cudagraph_sizes import GraphChoice, GraphKey


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


@pytest.mark.parametrize(
    ("chunks", "draw", "want"),
    [
        (decode(1), "greedy", GraphChoice(GraphKey(1, "greedy"))),
        (decode(3), "greedy", GraphChoice(GraphKey(4, "greedy"))),
        (decode(4), "plain", GraphChoice(GraphKey(4, "plain"))),
        (decode(5), "filtered", GraphChoice(GraphKey(8, "filtered"))),
        (decode(2), "special", GraphChoice(GraphKey(2, "hidden"))),
        (decode(9), "greedy", GraphChoice(None, "9 sequences are more than the 8 of the largest graph")),
        (decode(2, num_tokens=2), "greedy", GraphChoice(None, "a prompt is computed")),
        (decode(2, samples=False), "greedy", GraphChoice(None, "a token is computed that is not the last")),
        (decode(2, scores=(3, 4)), "special", GraphChoice(None, "more than the last token of a sequence is wanted")),
        (decode(2, pools=(9, 10)), "greedy", GraphChoice(None, "more than the last token of a sequence is wanted")),
    ],
)
def test_steps_of_single_tokens_are_replayed(
    chunks: list[Chunk], draw: cudagraph_sizes.SamplingKind, want: GraphChoice
) -> None:
    assert cudagraph_sizes.choose_graph(chunks, draw, (1, 2, 4, 8)) == want


def test_without_sizes_nothing_is_replayed() -> None:
    assert cudagraph_sizes.choose_graph(decode(1), "greedy", ()) == GraphChoice(None, "no sizes are captured")


def test_the_largest_is_recorded_first_and_middle_sizes_when_they_are_wanted() -> None:
    keys = cudagraph_sizes.at_start((1, 2, 4, 8, 16, 24))
    assert [key.size for key in keys] == [24, 24, 24, 8, 8, 8, 4, 4, 4, 2, 2, 2, 1, 1, 1]
    assert {key.output for key in keys} == {"greedy", "filtered", "hidden"}
