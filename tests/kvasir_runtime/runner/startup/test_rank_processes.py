"""Ranks as processes: the engine's own start, what it refuses, and how it ends when one of them is lost."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import Hand, Stream
from fakes.checkpoints import Shape
from kvasir_api.options import ServeOptions
from kvasir_runtime.errors import RankLostError, StartError
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup import rank_processes
from kvasir_runtime.runner.startup.build import build

pytestmark = pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")
DEADLINE_S = 60.0


def options_of(folder: Path, **given: object) -> ServeOptions:
    fields = {"device": "cpu", "dtype": "float32", "kv_cache_tokens": 1024, "startup_cache": "off", **given}
    return ServeOptions.model_validate({"model": str(folder), "tensor_parallel_size": 2, **fields})


def children() -> set[int]:
    """Processes that this one has started."""
    found = Path(f"/proc/{os.getpid()}/task").glob("*/children")
    return {int(pid) for path in found for pid in path.read_text().split()}


def children_end(started: set[int]) -> bool:
    """Whether all of them end."""
    deadline = time.monotonic() + DEADLINE_S
    while children() & started and time.monotonic() < deadline:
        time.sleep(0.02)
    return not children() & started


def answer(runner: ModelRunner, num_tokens: int) -> list[int]:
    stream = Stream(prompt=tuple(range(3, 40)))
    Hand(runner).run([stream], num_tokens, chunk=16)
    return stream.answer


def test_a_rank_that_is_killed_ends_the_model_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Much that a library printed before does not end it, and is not the reason."""
    (tmp_path / "sitecustomize.py").write_text("print('deprecated ' * 2000)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    folder, before = checkpoints.write(tmp_path / "m", Shape(family="qwen3_moe", std=0.2)), children()
    alone = answer(build(options_of(folder, tensor_parallel_size=1), lambda _: None), 12)
    runner = build(options_of(folder, enable_expert_parallel=True), lambda _: None)
    (rank,) = children() - before
    assert answer(runner, 12) == alone
    assert runner.facts.kernels.endswith(", 2 ranks")
    assert runner.failure == ""
    os.kill(rank, signal.SIGKILL)
    with pytest.raises(RankLostError, match=r"^rank 1 was killed by SIGKILL$"):
        answer(runner, 900)
    assert runner.failure == "rank 1 was killed by SIGKILL"


def test_a_stage_that_is_killed_ends_the_model_with_a_reason(tmp_path: Path) -> None:
    """Of three, of which the last waits for the one between, in a group that rank 0 is no member of."""
    folder, before = checkpoints.write(tmp_path / "m", Shape(num_layers=4, std=0.2)), children()
    alone = answer(build(options_of(folder, tensor_parallel_size=1), lambda _: None), 12)
    staged = options_of(folder, tensor_parallel_size=1, pipeline_parallel_size=3)
    runner = build(staged, lambda _: None)
    started = sorted(children() - before)
    assert answer(runner, 12) == alone
    assert runner.facts.kernels.endswith(", 3 ranks in 3 stages")
    os.kill(started[0], signal.SIGKILL)
    with pytest.raises(RankLostError, match=r"^rank 1 was killed by SIGKILL$"):
        answer(runner, 900)
    assert children_end(set(started))


def test_a_rank_that_fails_ends_the_model_with_its_last_words(tmp_path: Path) -> None:
    group = rank_processes.start(options_of(tmp_path / "none"), torch.device("cpu"), 1, lambda _: None)
    with pytest.raises(RankLostError, match=r"^rank 1: [A-Za-z]+Error: .*none"):
        group.broadcast(b"a step")
    assert group.failure.startswith("rank 1: ")


def test_a_node_of_no_nodes_is_refused_before_it_starts(tmp_path: Path) -> None:
    folder, before = checkpoints.write(tmp_path / "m", Shape()), children()
    with pytest.raises(StartError, match=r"^--node-rank 1 must be less than --nnodes 1$"):
        rank_processes.start(options_of(folder, node_rank=1), torch.device("cpu"), 1, lambda _: None)
    assert children() == before


@pytest.mark.parametrize("option", ["tensor_parallel_size", "pipeline_parallel_size"])
def test_ranks_on_a_card_are_refused_before_they_start(tmp_path: Path, option: str) -> None:
    options, before = options_of(tmp_path, **{"tensor_parallel_size": 1, option: 2}), children()
    named = option.replace("_", "-")
    with pytest.raises(StartError, match=rf"^--{named} 2 is not possible on CUDA yet: ranks compute on CPUs"):
        rank_processes.start(options, torch.device("cuda"), 1, lambda _: None)
    assert children() == before
