"""Experts that many tokens go to are copied to other ranks while steps are computed, and answers stay those of one
process: chunked, cached, preempted, drafted. The ranks are threads here, as in test_runner_ranks.py.
"""

import logging
import os
import random
import re
import shutil
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fakes import checkpoints, family_checkpoints, ggufs
from fakes.by_hand import runner_of, runner_with, scheduler_of
from fakes.checkpoints import Shape
from fakes.rank_decoders import follow_rank
from fakes.ranks import group_of
from kvasir_api.eplb import EplbConfig
from kvasir_api.options import ServeOptions
from kvasir_runtime.engine_reports import Progress
from kvasir_runtime.errors import RankLostError, StartError
from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.kernels.cpu.ops import CPU, cpu_ops
from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.layers.expert_copies import ExpertCopies
from kvasir_runtime.runner.launched_step import LaunchedStep
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup import placement
from kvasir_runtime.runner.startup.load_model import load_model
from kvasir_runtime.wire import EngineRequest, SamplingConfig

pytestmark = pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")

SHAPES = {
    "qwen3_moe": Shape(family="qwen3_moe", std=0.2),
    "qwen2_moe": Shape(family="qwen2_moe", std=0.2),
    "deepseek_v2": Shape(family="deepseek_v2", std=0.2),
}
OFTEN = EplbConfig(num_redundant_experts=4, window_size=20, step_interval=2)
SAMPLINGS = [
    SamplingConfig(temperature=0.0, max_tokens=12, ignore_eos=True),
    SamplingConfig(temperature=1.0, top_p=0.9, seed=7, max_tokens=12, ignore_eos=True),
    SamplingConfig(temperature=0.8, top_k=20, seed=8, max_tokens=12, ignore_eos=True, frequency_penalty=0.5),
]
ROUNDS = 40
"""More than a reader takes, by far."""


def prompts_of(count: int) -> list[tuple[int, ...]]:
    """Of few different tokens, so that some experts have many; some with a common beginning."""
    chooser = random.Random(3)
    common = tuple(chooser.choices(range(3, 30), k=48))
    lengths = [(chooser.choice((0, 16, 40)), own) for own in range(1, count + 1)]
    return [common[:shared] + tuple(chooser.choices(range(3, 60), k=own)) for shared, own in lengths]


def answers(runner: ModelRunner, speculation: str = "off") -> Iterator[tuple[list[list[int]], int]]:
    """Ids of answers to the same prompts, again and again, with chunks of 40 tokens and too few blocks for all, and how
    many were preempted.
    """
    while True:
        scheduler, flying = scheduler_of(runner, budget=40, speculation=speculation), deque[LaunchedStep]()
        prompts, joins = prompts_of(10), 0
        found: list[list[int]] = [[] for _ in prompts]
        for index, prompt in enumerate(prompts):
            sampling = SAMPLINGS[index % len(SAMPLINGS)]
            request = EngineRequest(request_id=str(index), prompt=prompt, sampling=sampling)
            assert scheduler.submit(request, 0.0) is None
        while scheduler.has_work:
            if (plan := scheduler.plan(0.0)) is not None:
                joins += len(plan.joins)
                flying.append(runner.launch(plan))
            for output in scheduler.commit(runner.collect(flying.popleft()), 0.0):
                found[int(output.request_id)] += output.token_ids
        yield found, joins - len(prompts)


def in_use(copies: ExpertCopies) -> dict[int, Any]:
    return {index: held for index, held in copies.copies.items() if any(held)}


def copying_runner(
    folder: Path, group: Sequence[Collectives], eplb: EplbConfig = OFTEN, **given: Any
) -> tuple[ModelRunner, list[ExpertCopies]]:
    """And the copies of each rank."""
    made: list[ExpertCopies] = []
    runner = runner_of(folder, group=group, whole_experts=True, eplb=(eplb, made), **given)
    return runner, made


@pytest.mark.parametrize(
    ("name", "ranks", "nodes", "given", "speculation"),
    [
        *((name, 2, 1, {}, "off") for name in SHAPES),
        *[("qwen3_moe", 2, 1, {"ops": CPU}, "off"), ("qwen3_moe", 2, 1, {}, "ngram"), ("qwen3_moe", 4, 1, {}, "off")],
        *[("deepseek_v2", 4, 2, {}, "ngram"), ("qwen3_moe", 2, 1, {"data_parallel": True}, "ngram")],
        ("deepseek_v2", 2, 1, {"data_parallel": True}, "off"),
    ],
)
def test_ranks_with_copies_answer_as_one_process_does(
    tmp_path: Path, name: str, ranks: int, nodes: int, given: dict[str, Any], speculation: str
) -> None:
    """Before there are copies, while they change in the middle of answers, and with those of all layers."""
    folder, sizes = checkpoints.write(tmp_path / "m", SHAPES[name]), {"max_sequences": 8, "ops": cpu_ops(), **given}
    one = {name: value for name, value in sizes.items() if name != "data_parallel"}
    alone, num_preempted = next(answers(runner_of(folder, num_blocks=13, **one), speculation))
    assert num_preempted > 0
    with group_of(ranks, nodes) as group:
        num_blocks = 13 * (ranks if given.get("data_parallel") else 1)
        runner, made = copying_runner(folder, group, num_blocks=num_blocks, **sizes)
        rounds, placements, layers = answers(runner, speculation), set[str](), set[int]()
        for _ in range(ROUNDS):
            found, _ = next(rounds)
            assert found == alone
            assert len({str(in_use(copies)) for copies in made}) == 1
            layers |= in_use(made[0]).keys()
            placements.add(str(in_use(made[0])))
            if layers == made[0].copies.keys() and len(placements) > 2:
                break
        assert layers == made[0].copies.keys()
        assert all(copies.failure == "" for copies in made)


def until_copied(runner: ModelRunner, copies: ExpertCopies, tokens: tuple[int, ...], want: torch.Tensor) -> None:
    """Compute a text until some layers have copies, and once more: its logits are always the same."""
    for _ in range(5_000):
        had = in_use(copies)
        torch.testing.assert_close(runner.logits(tokens), want, atol=1e-3, rtol=1e-3)
        if had:
            return
    raise AssertionError("no expert was copied")


@pytest.mark.parametrize("name", ["gpt-oss", "glm4-moe", "deepseek-v3", "nemotron-3-latent"])
def test_copies_of_other_families(tmp_path: Path, name: str) -> None:
    """Biases of every expert, tensors of all experts, groups, and experts without a gate."""
    family_checkpoints.write(tmp_path, name)
    tokens = tuple(random.Random(5).choices(range(3, 12), k=60))
    whole = runner_of(tmp_path, ops=cpu_ops()).logits(tokens)
    with group_of(2) as group:
        runner, made = copying_runner(tmp_path, group, ops=cpu_ops())
        until_copied(runner, made[0], tokens, whole)


@pytest.mark.parametrize("kind", ["int8", "int4", "Q8_0"])
def test_copies_have_the_numbers_of_quantized_experts(tmp_path: Path, kind: str) -> None:
    wide = Shape(family="qwen3_moe", std=0.2, hidden_size=256, intermediate_size=512)
    folder, given = checkpoints.write(tmp_path / "m", wide), {"quantization": kind}
    if kind.startswith("Q"):
        folder, given = ggufs.write(folder, tmp_path / "m.gguf", kind=kind), {"quantization": "auto"}
    tokens = tuple(random.Random(5).choices(range(3, 12), k=60))
    with group_of(2) as group:
        runner, made = copying_runner(folder, group, ops=cpu_ops(), **given)
        before = runner.logits(tokens)
        assert not in_use(made[0])
        until_copied(runner, made[0], tokens, before)


def balancedness(log: pytest.LogCaptureFixture) -> list[float]:
    """The numbers in the log so far."""
    found = [
        re.match(r"balancedness of experts (\d\.\d\d) with \d+ copies in \d+ layers: ", one.message)
        for one in log.records
    ]
    return [float(one[1]) for one in found if one is not None]


def test_the_log_says_how_even_the_loads_are(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Of a text of few different tokens."""
    folder, tokens = checkpoints.write(tmp_path / "m", SHAPES["qwen3_moe"]), (5, 9, 5, 7) * 30
    with group_of(4) as group, caplog.at_level(logging.INFO):
        runner, made = copying_runner(
            folder, group, msgspec.structs.replace(OFTEN, log_balancedness=True), ops=cpu_ops()
        )
        for _ in range(5_000):
            runner.logits(tokens)
            if len(in_use(made[0])) == len(made[0].copies) and made[0].copies == made[1].copies:
                break
        with_copies = len(balancedness(caplog))
        for _ in range(5_000):
            runner.logits(tokens)
            if len(balancedness(caplog)) > with_copies + 1:
                break
    assert balancedness(caplog)[0] < 0.65
    assert balancedness(caplog)[-1] > 0.75
    assert "with 0 copies in" in caplog.records[0].message


class SlowReader:
    """Operations with which rank 1 cannot build its copies until it may."""

    def __init__(self) -> None:
        self.may, self.waits, own = threading.Event(), threading.Event(), cpu_ops()

        def moe(router: Any, gate_up: Any, down: Any, routing: Routing, *rest: Any) -> Any:
            if threading.current_thread().name == "expert copies of rank 1":
                self.waits.set()
                assert self.may.wait(60)
            return own.moe(router, gate_up, down, routing, *rest)

        self.ops = replace(own, moe=moe)


def test_no_step_waits_for_a_slow_reader(tmp_path: Path) -> None:
    """Steps go on with the experts that there are; once it has read, all ranks use the copies, also of later layers."""
    folder, slow = checkpoints.write(tmp_path / "m", SHAPES["qwen3_moe"]), SlowReader()
    alone, _ = next(answers(runner_of(folder, num_blocks=13, max_sequences=8, ops=cpu_ops())))
    with group_of(2) as group:
        runner, made = copying_runner(folder, group, num_blocks=13, max_sequences=8, ops=slow.ops)
        rounds = answers(runner)
        for _ in range(ROUNDS):
            assert next(rounds)[0] == alone
            if slow.waits.is_set():
                break
        for _ in range(3):
            assert next(rounds)[0] == alone
            assert slow.waits.is_set()
            assert not slow.may.is_set()
        held = str(made[0].copies)
        assert str(made[1].copies) == held
        slow.may.set()
        for _ in range(ROUNDS):
            assert next(rounds)[0] == alone
            if len(in_use(made[1])) == len(made[1].copies):
                break
        assert len(in_use(made[1])) == len(made[1].copies)
        assert str(made[0].copies) == str(made[1].copies) != held


def test_a_rank_that_is_lost_while_it_reads_ends_the_others(tmp_path: Path) -> None:
    folder, slow = checkpoints.write(tmp_path / "m", SHAPES["qwen3_moe"]), SlowReader()
    with group_of(2) as group:
        runner, _ = copying_runner(folder, group, num_blocks=13, max_sequences=8, ops=slow.ops)
        rounds = answers(runner)
        for _ in range(ROUNDS):
            next(rounds)
            if slow.waits.is_set():
                break
        assert slow.waits.is_set()
        group[1].abort("rank 1 was killed")
        with pytest.raises(RankLostError):
            next(rounds)
        slow.may.set()


def replaced(folder: Path, how: str) -> None:
    """The weights of a checkpoint that is being served."""
    path = folder / "model.safetensors"
    if how == "gone":
        path.unlink()
    elif how == "shorter":
        os.truncate(path, path.stat().st_size // 2)
    elif how == "of other sizes":
        shutil.rmtree(folder)
        checkpoints.write(folder, replace(SHAPES["qwen3_moe"], hidden_size=32))
    else:
        checkpoints.write(folder.parent / "other", replace(SHAPES["qwen3_moe"], seed=77))
        (folder.parent / "other" / "model.safetensors").replace(path)


@pytest.mark.parametrize("how", ["gone", "shorter", "of other sizes", "of other weights"])
@pytest.mark.parametrize("is_late", [False, True])
def test_a_checkpoint_that_was_replaced_is_not_read(tmp_path: Path, how: str, is_late: bool) -> None:
    """The copies that there are stay in use, and answers too."""
    folder = checkpoints.write(tmp_path / "m", SHAPES["qwen3_moe"])
    alone, _ = next(answers(runner_of(folder, num_blocks=13, max_sequences=8, ops=cpu_ops())))
    with group_of(2) as group:
        runner, made = copying_runner(folder, group, num_blocks=13, max_sequences=8, ops=cpu_ops())
        rounds = answers(runner)
        while is_late and not in_use(made[0]):
            assert next(rounds)[0] == alone
        replaced(folder, how)
        for _ in range(ROUNDS):
            assert next(rounds)[0] == alone
            if any(one.failure for one in made):
                break
        assert any(one.failure for one in made)
        for _ in range(3):
            assert next(rounds)[0] == alone
        assert bool(in_use(made[0])) == is_late
        assert str(made[0].copies) == str(made[1].copies)


def test_files_that_were_replaced_while_they_were_loaded_are_not_read(tmp_path: Path) -> None:
    """Rank 0 has loaded others than those that lie there when it is done."""
    folder, device = checkpoints.write(tmp_path / "m", SHAPES["qwen3_moe"]), placement.choose_device("cpu")
    config = '{"num_redundant_experts": 4, "window_size": 20, "step_interval": 2}'
    fields = {"device": "cpu", "dtype": "float32", "tensor_parallel_size": 2, "kv_cache_tokens": 1024}
    copied = {"enable_expert_parallel": True, "enable_eplb": True, "eplb_config": config}
    options = ServeOptions.model_validate({"model": str(folder), **fields, **copied})

    def on_progress(progress: Progress) -> None:
        if progress.progress_fraction == 1.0:
            replaced(folder, "of other weights")

    with group_of(2) as group:
        first, second = (replace(cpu_ops(), collectives=member) for member in group)
        other = load_model(options, folder, device, second, lambda _: None).model
        model = load_model(options, folder, device, first, on_progress).model
        threading.Thread(target=follow_rank, args=(other, group[1]), daemon=True).start()
        runner, copies = runner_with(model, eos_token_ids=(), limit=256, ops=first), model.expert_copies
        assert copies is not None
        for _ in range(5_000):
            runner.logits((5, 9, 5, 7) * 10)
            if copies.failure:
                break
        assert copies.failure == f"{folder}: the files are others than when the model was loaded"
        assert not in_use(copies)


def test_more_copies_than_experts_of_others_are_refused(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "m", SHAPES["qwen3_moe"])
    why = "5 copies on each rank are more than the 4 experts of the others"
    with group_of(2) as group, pytest.raises(StartError, match=why):
        copying_runner(folder, group, EplbConfig(num_redundant_experts=10), ops=cpu_ops())
