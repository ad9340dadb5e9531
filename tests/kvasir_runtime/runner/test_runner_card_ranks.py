"""Ranks with a card each answer as one process does: launched ahead, captured and replayed, with all that may be asked.

The ranks are threads, and their cards this processor; see `fakes.cards`.
"""

from pathlib import Path

import pytest

from fakes import checkpoints
from fakes.by_hand import captured, runner_of
from fakes.cards import cards_of
from fakes.checkpoints import Shape
from fakes.mixtures import mixed, served, told
from fakes.overlapping import Overlapping
from fakes.recording import OPS, Recordings
from kvasir_runtime.errors import RankLostError
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.runner.graphs.capture import Body, CapturedGraph
from kvasir_runtime.runner.runner import ModelRunner

pytestmark = pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")

LONGEST = {"max_position_embeddings": 128, "seed": 6}
SHAPES = {
    "mistral": Shape(family="mistral", extra={"sliding_window": 24}, **LONGEST),
    "odd vocabulary": Shape(vocab_size=321, tied=True, **LONGEST),
    "gemma3": Shape(family="gemma3_text", std=0.2, **LONGEST),
    "qwen3_moe": Shape(family="qwen3_moe", std=0.2, **LONGEST),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def folder_of(root: Path, name: str) -> Path:
    folder = root / name
    return folder if folder.exists() else checkpoints.write(folder, SHAPES[name])


def made(folder: Path, recordings: type[Recordings] | None, **given: object) -> ModelRunner:
    """With all graphs captured, None for none."""
    sizes = {"max_sequences": 9, "num_blocks": 64, **given}
    return captured(runner_of(folder, ops=OPS, device_stream=Overlapping(), new_capturer=recordings, **sizes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "ranks", "captures"),
    [
        *((name, 2, captures) for name in ("mistral", "gemma3") for captures in (False, True)),
        *[("odd vocabulary", 2, True), ("mistral", 4, True), ("qwen3_moe", 2, False)],
    ],
)
def test_any_mixture_is_answered_as_by_one_process(root: Path, name: str, ranks: int, captures: bool) -> None:
    """The reference's experts ask the host for their tokens, which cannot be recorded."""
    folder = folder_of(root, name)
    alone = served(made(folder, None), mixed(), depth=2)
    recordings = Recordings if captures else None
    with cards_of(ranks) as group:
        runner = made(folder, recordings, group=group)
        together = served(runner, mixed(), depth=2)
        assert runner.failure == ""
    assert {each: told(events) for each, events in together.items()} == {
        each: told(events) for each, events in alone.items()
    }
    if captures:
        assert runner._graphs is not None
        assert runner.facts.kernels.endswith(", graphs")
        assert sum(runner._graphs.replays.values()) > 20
        assert {"hidden", "greedy"} <= {key.output for key in runner._graphs.replays}


class Unable(Recordings):
    """Records the first bodies, and then none."""

    def capture(self, body: Body) -> CapturedGraph:
        """Fails behind the first run of the fourth."""
        if len(self.captured) < 3:
            return super().capture(body)
        body()
        raise RuntimeError("operation not permitted when stream is capturing")


def test_the_model_ends_where_the_first_rank_cannot_capture(root: Path) -> None:
    """The others are in the middle of what they capture with it; with one rank steps would be launched from then on."""
    folder = folder_of(root, "odd vocabulary")
    assert made(folder, Unable).failure == ""
    with cards_of(2) as group:
        with pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"):
            made(folder, Unable, group=group)
        assert {rank.failure for rank in group} == {"rank 0: operation not permitted when stream is capturing", ""}
        with pytest.raises(RankLostError):
            group[1].broadcast(b"")
