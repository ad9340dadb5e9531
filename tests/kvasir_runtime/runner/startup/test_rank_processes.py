"""Ranks as processes: the engine's own start, what it refuses, and how it ends when one of them is lost."""

import logging
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import Hand, Stream
from fakes.cards import FakeCard
from fakes.checkpoints import Shape
from fakes.mixtures import WISHES, request, served
from fakes.ranks import group_of
from kvasir_api.options import ServeOptions
from kvasir_runtime import rank_states
from kvasir_runtime.errors import RankLostError, StartError
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup import capacity, rank_processes
from kvasir_runtime.runner.startup.build import build, fitted_facts

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


def answers(runner: ModelRunner) -> dict[str, list[int]]:
    """To requests with different wishes, all at once."""
    requests = [request(number, **WISHES[number % len(WISHES)]) for number in range(12)]
    story = served(runner, requests, depth=2)
    return {name: [token for event in events for token in event.token_ids] for name, events in story.items()}


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


@pytest.mark.parametrize("parallel", ["tensor_parallel_size", "data_parallel_size"])
def test_processes_copy_experts(tmp_path: Path, caplog: pytest.LogCaptureFixture, parallel: str) -> None:
    """Answers stay those of one process, and rank 0 logs when copies are in use."""
    folder, before = checkpoints.write(tmp_path / "m", Shape(family="qwen3_moe", std=0.2)), children()
    alone = answer(build(options_of(folder, tensor_parallel_size=1), lambda _: None), 12)
    config = '{"num_redundant_experts": 4, "step_interval": 2, "log_balancedness": true}'
    ranks = {"tensor_parallel_size": 1, parallel: 2}
    options = options_of(folder, **ranks, enable_expert_parallel=True, enable_eplb=True, eplb_config=config)
    runner, deadline = build(options, lambda _: None), time.monotonic() + DEADLINE_S
    (rank,) = children() - before

    def has_copies() -> bool:
        logged = (one.message for one in caplog.records)
        return any("balancedness" in line and "with 0 copies" not in line for line in logged)

    with caplog.at_level(logging.INFO):
        while not has_copies() and time.monotonic() < deadline:
            assert answer(runner, 12) == alone
    assert has_copies()
    assert answer(runner, 12) == alone
    os.kill(rank, signal.SIGKILL)
    with pytest.raises(RankLostError, match=r"^rank 1 was killed by SIGKILL$"):
        answer(runner, 900)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v2"])
def test_a_rank_with_requests_of_its_own_that_is_killed_ends_the_model(tmp_path: Path, family: str) -> None:
    """Of 1,000 tokens of cache each rank has blocks for half, rounded up; its weights are those that it holds."""
    folder, before = checkpoints.write(tmp_path / "m", Shape(family=family, std=0.2)), children()
    alone = build(options_of(folder, tensor_parallel_size=1), lambda _: None)
    given = {"tensor_parallel_size": 1, "data_parallel_size": 2, "enable_expert_parallel": True}
    runner = build(options_of(folder, **given, kv_cache_tokens=1000), lambda _: None)
    (rank,) = children() - before
    assert answers(runner) == answers(alone)
    facts = runner.facts
    assert (facts.num_blocks, facts.data_ranks, runner.blocks.shape[1]) == (64, 2, 32)
    assert facts.kernels.endswith(", 2 ranks")
    assert alone.facts.weights_bytes < facts.weights_bytes < 2 * alone.facts.weights_bytes
    assert facts.kv_bytes_per_token == alone.facts.kv_bytes_per_token
    options = options_of(folder, **given)
    of_ranks = rank_states.loaded(options, facts.rank_sizes, facts.capacity_tokens // 2)
    assert [(one.stage, one.shard, one.kv_bytes) for one in of_ranks] == [
        (0, shard, 512 * facts.kv_bytes_per_token) for shard in (0, 1)
    ]
    os.kill(rank, signal.SIGKILL)
    killed_at = time.monotonic()
    with pytest.raises(RankLostError, match=r"^rank 1 was killed by SIGKILL$"):
        answer(runner, 900)
    assert time.monotonic() - killed_at < 2


def test_the_cache_of_ranks_with_requests_of_their_own_is_what_memory_allows_each(tmp_path: Path) -> None:
    """And the longest request what one of them holds, less where its part is smaller than the model's own limit."""
    folder = checkpoints.write(tmp_path / "m", Shape(family="qwen3_moe", max_position_embeddings=512))
    runner = build(options_of(folder, tensor_parallel_size=1, data_parallel_size=2, kv_cache_tokens=0), lambda _: None)
    facts = runner.facts
    assert facts.num_blocks == 2 * runner.blocks.shape[1] > 2
    free = capacity.MeasuredMemory(limit_bytes=1 << 20, used_bytes=0, available_bytes=1 << 20, peak_bytes=0)
    options = options_of(folder, tensor_parallel_size=1, data_parallel_size=2)
    unfitted = msgspec.structs.replace(facts, num_blocks=0, kv_bytes_per_token=4096)
    fitted = fitted_facts(unfitted, options, free)
    assert (fitted.num_blocks, fitted.capacity_tokens, fitted.max_model_len) == (2 * 14, 2 * 14 * 16, 14 * 16 + 1)


def test_a_model_without_experts_is_not_shared_by_ranks(tmp_path: Path) -> None:
    folder, before = checkpoints.write(tmp_path / "m", Shape()), children()
    options = options_of(folder, tensor_parallel_size=1, data_parallel_size=2)
    why = (
        "^--data-parallel-size 2 is not possible: the model has no experts that ranks could share: let several replicas"
    )
    with pytest.raises(StartError, match=why):
        build(options, lambda _: None)
    assert children_end(children() - before)


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


def test_who_watches_a_rank_ends_what_the_cards_exchange_too(tmp_path: Path) -> None:
    told: list[str] = []

    class Watched(FakeCard):
        """A group of cards behind that of their host."""

        def abort(self, why: str) -> None:
            """Told before the host's group ends."""
            told.append(why)
            super().abort(why)

    group = rank_processes._node(options_of(tmp_path / "none"), 1, Watched)
    with pytest.raises(RankLostError, match=r"^rank 1: "):
        group.broadcast(b"a step")
    assert [why.startswith("rank 1: ") for why in told] == [True]


def test_a_node_of_no_nodes_is_refused_before_it_starts(tmp_path: Path) -> None:
    folder, before = checkpoints.write(tmp_path / "m", Shape()), children()
    with pytest.raises(StartError, match=r"^--node-rank 1 must be less than --nnodes 1$"):
        rank_processes.start(options_of(folder, node_rank=1), torch.device("cpu"), 1, lambda _: None)
    assert children() == before


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tensor_parallel_size": 4}, "--tensor-parallel-size 4 needs 4 CUDA devices, and there are 0"),
        ({"pipeline_parallel_size": 2}, "2 ranks are not possible on CUDA: devices divide layers, by --tensor-para"),
        ({"data_parallel_size": 2}, "2 ranks are not possible on CUDA: devices divide layers, by --tensor-para"),
        ({"tensor_parallel_size": 2, "nnodes": 2}, "--nnodes 2 is not possible on CUDA: all devices are of one host"),
        ({"tensor_parallel_size": 2, "enable_expert_parallel": True}, "--enable-expert-parallel is not possible on CU"),
        ({"tensor_parallel_size": 2, "weights_host_bytes": 1 << 30}, "--weights-host-bytes is not possible beside --t"),
    ],
)
def test_what_ranks_with_devices_cannot_is_refused_before_they_start(
    tmp_path: Path, given: dict[str, object], why: str
) -> None:
    given = {"tensor_parallel_size": 1, "master_addr": "127.0.0.1", "node_key_file": "key", **given}
    options, before = options_of(tmp_path, **given), children()
    with pytest.raises(StartError, match=f"^{re.escape(why)}"):
        rank_processes.start(options, torch.device("cuda"), 1, lambda _: None)
    assert children() == before


@pytest.mark.parametrize(("ranks", "nodes", "stages"), [(2, 2, 2), (3, 3, 3), (4, 2, 2), (4, 1, 2), (2, 1, 1)])
def test_all_ranks_cut_by_the_memory_of_the_smallest_node(ranks: int, nodes: int, stages: int) -> None:
    """Each node has less than the one before it, and ranks of one layer are on nodes of their own memory."""
    each = ranks // stages
    with group_of(ranks, nodes, stages) as group, ThreadPoolExecutor(ranks) as pool:
        least = pool.map(lambda rank: rank_processes.least_memory(group[rank], 2**40 - rank // each), range(ranks))
        assert list(least) == [2**40 - stages + 1] * ranks
    assert rank_processes.least_memory(None, 7) == 7
