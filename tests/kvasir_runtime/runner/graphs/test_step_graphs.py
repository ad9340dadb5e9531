"""Recorded steps say what launched ones say, for any rows, however they are drawn, padded as they are."""

import random
from pathlib import Path

import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import Hand, Stream, captured, runner_of
from fakes.checkpoints import Shape
from fakes.mixtures import mixed, served, told
from fakes.overlapping import Overlapping
from fakes.recording import OPS, Recordings
from kvasir_api.options import ServeOptions
from kvasir_runtime.core.plan import Chunk, Join, StepPlan
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.runner.graphs.cudagraph_sizes import GraphKey
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup import warmup
from kvasir_runtime.runner.startup.build import assemble, build
from kvasir_runtime.wire import EngineFacts, SamplingConfig

DRAWS = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "filtered": {"temperature": 0.9, "top_k": 12, "top_p": 0.9},
    "hidden": {"temperature": 0.0, "logit_bias": ((9, 3.0),), "frequency_penalty": 0.5},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shape = Shape(family="mistral", extra={"sliding_window": 24}, max_position_embeddings=128, seed=6)
    return checkpoints.write(tmp_path_factory.mktemp("models") / "mistral", shape)


def made(folder: Path, recordings: Recordings | None = None, **sizes: int) -> ModelRunner:
    new_capturer = None if recordings is None else lambda: recordings
    sizes = {"max_sequences": 9, "num_blocks": 64, **sizes}
    return captured(runner_of(folder, ops=OPS, device_stream=Overlapping(), new_capturer=new_capturer, **sizes))


def streams(count: int, draw: str, seed: int = 0) -> list[Stream]:
    chance = random.Random(seed)
    return [
        Stream(
            prompt=tuple(chance.choices(range(3, 320), k=chance.randint(1, 40))),
            sampling=SamplingConfig(**{"max_tokens": 30, "seed": number, **DRAWS[draw]}),  # type: ignore[arg-type]
        )
        for number in range(count)
    ]


def run(runner: ModelRunner, those: list[Stream]) -> list[list[int]]:
    """They come and go: each has a longer answer than the one before it."""
    hand = Hand(runner)
    for number, stream in enumerate(those):
        hand.step([(stream, len(stream.prompt)), *((other, 1) for other in those[:number])])
    for length in range(3, 3 + 4 * len(those), 4):
        hand.run(those, len(those) + length)
        hand.release(those[0])
        those = those[1:]
    return []


@pytest.mark.parametrize("draw", DRAWS)
def test_replays_of_any_size_say_what_launches_say(folder: Path, draw: str) -> None:
    recordings, launched, replayed = Recordings(), streams(6, draw), streams(6, draw)
    run(made(folder), launched)
    runner = made(folder, recordings)
    run(runner, replayed)
    assert [stream.answer for stream in replayed] == [stream.answer for stream in launched]
    assert runner._graphs is not None
    # Six at a time and five take the size 8, three the size 4; prompts beside them up to 64 tokens.
    assert {key for key in runner._graphs.replays if key.output != "hidden" or draw == "hidden"} >= {
        GraphKey(size, draw)  # type: ignore[arg-type]
        for size in (1, 2, 4, 8)
    }
    assert {key.tokens for key in runner._graphs.replays} >= {0, 32}
    assert sum(runner._graphs.replays.values()) > 20
    assert runner.facts.kernels.endswith(", graphs")


def test_any_mixture_is_answered_as_without_recordings(folder: Path) -> None:
    """Prompts between, guides aside: launched and replayed steps leave rows as they expect them of one another."""
    launched = served(runner_of(folder, ops=OPS), mixed(), depth=1, budget=200)
    for depth, max_sequences in ((1, 9), (2, 9), (2, 3)):
        runner = made(folder, Recordings(), num_blocks=44, max_sequences=max_sequences)
        replayed = served(runner, mixed(), depth=depth)
        assert {name: told(events) for name, events in replayed.items()} == {
            name: told(events) for name, events in launched.items()
        }
        assert runner._graphs is not None
        assert "hidden" in {key.output for key in runner._graphs.replays}
        assert {32, 64} <= {key.tokens for key in runner._graphs.replays}, "prompts beside answers are replayed"
    assert len({key.output for key in runner._graphs.replays}) > 2


def test_a_steady_step_is_one_replay_and_no_upload(folder: Path) -> None:
    runner, device_stream = made(folder, Recordings()), None
    hand, those = Hand(runner), streams(3, "filtered")
    hand.run(those, 2)
    device_stream = runner._stream
    assert isinstance(device_stream, Overlapping)
    before, replays = device_stream.num_uploads, sum(runner._graphs.replays.values())
    hand.run(those, 4)
    grown = sum(len(stream.tokens) % 8 in (1, 2) for stream in those)
    assert device_stream.num_uploads - before <= grown, "only new blocks are brought"
    assert sum(runner._graphs.replays.values()) - replays == 2


def test_padding_never_touches_what_is_somebodys(folder: Path) -> None:
    runner = made(folder, Recordings())
    hand, those = Hand(runner), streams(9, "greedy")
    hand.run(those, 3)
    kept = those[5:]
    for stream in those[:5]:
        hand.release(stream)
    held = sorted(block for stream in kept for block in stream.blocks)
    others = torch.tensor([block for block in range(64) if block not in held])
    rows = [stream.row for stream in kept]
    idle = [row for row in range(9) if row not in rows]
    before, tokens = runner._cache.blocks[others].clone(), runner._rows.tokens[idle].clone()
    hand.run(kept[:3], 5)  # a size of 4, and nobody's row in it
    new = [block for stream in kept for block in stream.blocks if block not in held]
    still = [place for place, block in enumerate(others.tolist()) if block not in new]
    assert torch.equal(runner._cache.blocks[others[still]], before[still])
    assert torch.equal(runner._rows.tokens[idle], tokens)
    assert runner._rows._lens[runner._rows.padding_row] == 0
    assert runner._rows.tokens[runner._rows.padding_row, 0] == 0


def test_recordings_are_launched_in_flight_without_the_host(folder: Path) -> None:
    device_stream = Overlapping()
    runner = runner_of(
        folder, ops=OPS, device_stream=device_stream, new_capturer=Recordings, max_sequences=2, num_blocks=8
    )
    runner.capture_graphs()
    sampling = SamplingConfig(max_tokens=20, seed=5, temperature=1.0)
    join = Join(
        row=1, request_id="a", tokens=(7, 8), prompt_tokens=2, computed_tokens=0, tables=((3, 1),), sampling=sampling
    )
    flying = [
        runner.launch(StepPlan(step=1, joins=(join,), chunks=(Chunk(row=1, start=0, num_tokens=2, samples=True),)))
    ]
    for step in range(2, 12):
        chunk = Chunk(row=1, start=step, num_tokens=1, samples=True)
        flying.append(runner.launch(StepPlan(step=step, chunks=(chunk,))))
    assert device_stream.num_waits == [0]
    drawn = [runner.collect(one).sampled[0].tokens[0] for one in flying]
    alone = Stream(prompt=(7, 8), sampling=sampling)
    Hand(runner_of(folder, ops=OPS)).run([alone], 11)
    assert drawn == alone.answer


def test_what_cannot_be_recorded_is_launched_and_the_reason_is_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runner = made(folder, Recordings(refuses="no graphs\nhere"))
    assert runner.facts.fallback == "steps cannot be captured as CUDA graphs: no graphs here"
    assert not runner.facts.kernels.endswith("graphs")
    assert "launched without CUDA graphs: no graphs here" in caplog.text
    launched, plain = streams(3, "greedy"), streams(3, "greedy")
    Hand(runner).run(launched, 9)
    Hand(made(folder)).run(plain, 9)
    assert [stream.answer for stream in launched] == [stream.answer for stream in plain]
    reading = made(folder, Recordings())
    assert reading._graphs.failure == ""
    read_back = runner_of(folder, device_stream=Overlapping(), new_capturer=Recordings, max_sequences=2, num_blocks=8)
    read_back.capture_graphs()  # the CPU's attention asks the host for lengths
    assert "not permitted when stream is capturing" in read_back.facts.fallback


def test_nothing_is_recorded_while_requests_are_served(folder: Path) -> None:
    """Whatever size a step has: what is not recorded yet is padded further, or launched."""
    recordings = Recordings()
    runner = runner_of(
        folder, ops=OPS, device_stream=Overlapping(), new_capturer=lambda: recordings, max_sequences=13, num_blocks=64
    )
    runner.capture_graphs()
    at_start = len(recordings.captured)
    assert runner._graphs is not None
    served(runner, mixed(), depth=2)
    assert len(recordings.captured) == at_start
    assert {key.output for key in runner._graphs.replays} == {"greedy", "filtered", "hidden"}
    runner.do_idle_work()  # one at a time
    assert len(recordings.captured) == at_start + 1
    while runner.has_idle_work:
        runner.do_idle_work()
    Hand(runner).run(streams(2, "plain"), 4)
    assert "plain" in {key.output for key in runner._graphs.replays}


def test_what_is_recorded_later_is_in_the_budget_at_the_start(folder: Path) -> None:
    recordings = Recordings()
    runner = runner_of(
        folder, ops=OPS, device_stream=Overlapping(), new_capturer=lambda: recordings, max_sequences=20, num_blocks=200
    )
    runner.capture_graphs()
    sizes = [len(one.outputs[0]) for one in recordings.captured]
    assert sizes[:18] == [size for size in (20, 16, 8, 4, 2, 1) for _ in range(3)]
    assert sizes[18:] == [21] * 9, "128, 64 and 32 tokens of 20 sequences and the padding's"
    expected = runner.graph_bytes
    assert expected > recordings.num_bytes + runner._rows.num_bytes
    while runner.has_idle_work:
        runner.do_idle_work()
        assert runner.graph_bytes <= expected
    assert runner.graph_bytes == recordings.num_bytes + runner._rows.num_bytes


def test_graphs_that_there_are_go_on_when_memory_for_others_runs_out(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recordings = Recordings()
    runner = runner_of(
        folder, ops=OPS, device_stream=Overlapping(), new_capturer=lambda: recordings, max_sequences=9, num_blocks=64
    )
    runner.capture_graphs()
    recordings.refuses = "CUDA out of memory"
    runner.do_idle_work()
    assert not runner.has_idle_work
    assert "CUDA out of memory" in caplog.text
    Hand(runner).run(streams(3, "greedy"), 4)
    assert runner._graphs is not None
    assert runner._graphs.replays


@pytest.mark.skipif(library() is None, reason="torch's operations read lengths where the recorder does not see it")
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_the_option_says_whether_steps_are_recorded(folder: Path, cuda_graphs: bool) -> None:
    asked: list[Recordings] = []

    def new_capturer() -> Recordings:
        asked.append(Recordings())
        return asked[-1]

    options = ServeOptions(
        model=str(folder), device="cpu", kv_cache_tokens=128, max_sequences=2, cuda_graphs=cuda_graphs
    )
    runner = build(options, lambda _: None, Overlapping(), new_capturer)
    assert bool(asked) == cuda_graphs
    # Kernels in C++ are no tensor operations, so they pass the recorder by.
    assert (runner.facts.kernels.endswith(", graphs") or "cannot be captured" in runner.facts.fallback) == cuda_graphs
    assert (runner.graph_bytes > runner._rows.num_bytes > 0) == cuda_graphs


def test_the_cache_is_sized_after_what_rows_and_recordings_will_hold(folder: Path) -> None:
    """On a scratch cache of one block, so before there is a cache."""
    runner = made(folder, Recordings())
    scratches: list[EngineFacts] = []

    def scratch(facts: EngineFacts) -> ModelRunner:
        scratches.append(facts)
        cpu = torch.device("cpu")
        return assemble(
            runner._model, OPS, facts, cpu, torch.float32, device_stream=Overlapping(), new_capturer=Recordings
        )

    measured = warmup.measured(scratch, runner.facts, torch.device("cpu"))
    assert measured.graph_bytes >= runner.graph_bytes > runner._rows.num_bytes
    assert (scratches[-1].num_blocks, scratches[-1].max_sequences) == (1, 9)
