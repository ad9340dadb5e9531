"""Experts that many tokens go to are copied to other ranks while steps are computed, and answers stay those of one
process: chunked, cached, preempted, drafted. The ranks are threads here, as in test_runner_ranks.py.
"""

import random
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fakes import checkpoints, family_checkpoints
from fakes.by_hand import runner_of, scheduler_of
from fakes.checkpoints import Shape
from fakes.ranks import group_of
from kvasir_api.eplb import EplbConfig
from kvasir_runtime.errors import StartError
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.kernels.cpu.ops import CPU, cpu_ops
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.layers.expert_copies import ExpertCopies
from kvasir_runtime.runner.runner import ModelRunner
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
ROUNDS = 20


def prompts_of(count: int) -> list[tuple[int, ...]]:
    """Of few different tokens, so that some experts have many; some with a common beginning."""
    chooser = random.Random(3)
    common = tuple(chooser.choices(range(3, 30), k=48))
    return [common[: chooser.choice((0, 16, 40))] + tuple(chooser.choices(range(3, 60), k=own)) for own in range(count)]


def answers(runner: ModelRunner, speculation: str = "off") -> Iterator[list[list[int]]]:
    """Ids of answers to the same prompts, again and again, with chunks of 40 tokens and too few blocks for all."""
    while True:
        scheduler, flying = scheduler_of(runner, budget=40, speculation=speculation), deque()
        prompts = [prompt or (3,) for prompt in prompts_of(10)]
        found: list[list[int]] = [[] for _ in prompts]
        for index, prompt in enumerate(prompts):
            sampling = SAMPLINGS[index % len(SAMPLINGS)]
            request = EngineRequest(request_id=str(index), prompt=prompt, sampling=sampling)
            assert scheduler.submit(request, 0.0) is None
        while scheduler.has_work:
            if (plan := scheduler.plan(0.0)) is not None:
                flying.append(runner.launch(plan))
            for output in scheduler.commit(runner.collect(flying.popleft()), 0.0):
                found[int(output.request_id)] += output.token_ids
        yield found


def num_copies(copies: ExpertCopies) -> int:
    return sum(len(held) for layer in copies.copies.values() for held in layer)


@pytest.mark.parametrize(
    ("name", "ranks", "nodes", "ops", "speculation"),
    [
        *((name, 2, 1, cpu_ops(), "off") for name in SHAPES),
        *[("qwen3_moe", 2, 1, CPU, "off"), ("qwen3_moe", 2, 1, cpu_ops(), "ngram")],
        *[("qwen3_moe", 4, 1, cpu_ops(), "off"), ("deepseek_v2", 4, 2, cpu_ops(), "ngram")],
    ],
)
def test_ranks_with_copies_answer_as_one_process_does(
    tmp_path: Path, name: str, ranks: int, nodes: int, ops: Ops, speculation: str
) -> None:
    folder, sizes = checkpoints.write(tmp_path / "m", SHAPES[name]), {"num_blocks": 22, "max_sequences": 8, "ops": ops}
    alone = next(answers(runner_of(folder, **sizes), speculation))
    with group_of(ranks, nodes) as group:
        made: list[ExpertCopies] = []
        runner = runner_of(folder, **sizes, group=group, whole_experts=True, copies=OFTEN, made=made)
        copies, rounds = made[0], answers(runner, speculation)
        for _ in range(ROUNDS):
            had = num_copies(copies)
            assert next(rounds) == alone
            if had:
                break
        assert had > 0
        assert all(rows > 0 for rows in copies.rows)
        assert copies.failure == ""


@pytest.mark.parametrize("name", ["gpt-oss", "deepseek-v3", "nemotron-3-latent"])
def test_copies_of_other_families(tmp_path: Path, name: str) -> None:
    """Biases of every expert, tensors of all experts, groups, and experts without a gate."""
    family_checkpoints.write(tmp_path, name)
    tokens = tuple(random.Random(5).choices(range(3, 12), k=60))
    whole = runner_of(tmp_path, ops=cpu_ops()).logits(tokens)
    with group_of(2) as group:
        made: list[ExpertCopies] = []
        runner = runner_of(tmp_path, ops=cpu_ops(), group=group, whole_experts=True, copies=OFTEN, made=made)
        copies = made[0]
        for _ in range(ROUNDS):
            had = num_copies(copies)
            torch.testing.assert_close(runner.logits(tokens), whole, atol=1e-4, rtol=1e-4)
            if had:
                break
        assert had > 0


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_copies_have_the_numbers_of_quantized_experts(tmp_path: Path, quantization: str) -> None:
    folder = checkpoints.write(tmp_path / "m", Shape(family="qwen3_moe", std=0.2, hidden_size=128))
    tokens = tuple(random.Random(5).choices(range(3, 12), k=60))
    with group_of(2) as group:
        made: list[ExpertCopies] = []
        given = {"ops": cpu_ops(), "quantization": quantization, "group": group, "whole_experts": True}
        runner = runner_of(folder, **given, copies=OFTEN, made=made)
        before, copies = runner.logits(tokens), made[0]
        assert num_copies(copies) == 0
        for _ in range(ROUNDS):
            had = num_copies(copies)
            torch.testing.assert_close(runner.logits(tokens), before, atol=1e-3, rtol=1e-3)
            if had:
                break
        assert had > 0


def test_a_rank_that_cannot_read_leaves_all_without_copies(tmp_path: Path) -> None:
    """The checkpoint has gone since the start; answers go on."""
    folder = checkpoints.write(tmp_path / "m", SHAPES["qwen3_moe"])
    sizes = {"num_blocks": 22, "max_sequences": 8, "ops": cpu_ops()}
    alone = next(answers(runner_of(folder, **sizes)))
    with group_of(2) as group:
        made: list[ExpertCopies] = []
        runner = runner_of(folder, **sizes, group=group, whole_experts=True, copies=OFTEN, made=made)
        copies, rounds = made[0], answers(runner)
        (folder / "model.safetensors").unlink()
        for _ in range(ROUNDS):
            assert next(rounds) == alone
            if any(one.failure for one in made):
                break
        assert next(rounds) == alone
        assert any("safetensors" in one.failure for one in made)
        assert num_copies(copies) == 0


def test_more_copies_than_experts_of_others_are_refused(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "m", SHAPES["qwen3_moe"])
    config = EplbConfig(num_redundant_experts=10)
    with (
        group_of(2) as group,
        pytest.raises(StartError, match="5 copies on a rank are more"),
    ):
        runner_of(folder, ops=cpu_ops(), group=group, whole_experts=True, copies=config)
