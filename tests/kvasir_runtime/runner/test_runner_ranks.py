"""Several ranks compute each layer together, and answer as one process does: chunked, cached, preempted, quantized.

The ranks are threads here, with the memory and the code of processes. Processes: startup/test_rank_processes.py.
"""

import random
from collections import deque
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from fakes import checkpoints, family_checkpoints, family_configs, fp8_checkpoints, ggufs, integer_checkpoints
from fakes.by_hand import Hand, Stream, runner_of, scheduler_of
from fakes.checkpoints import Shape
from fakes.ranks import WithoutMemory, group_of
from kvasir_runtime.core.plan import BlockCopy
from kvasir_runtime.errors import RankLostError
from kvasir_runtime.kernels.collectives import Collectives
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.kernels.cpu.ops import CPU, cpu_ops
from kvasir_runtime.kernels.ops import Ops
from kvasir_runtime.runner.launched_step import LaunchedStep
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import EngineRequest, PoolingConfig, SamplingConfig

pytestmark = pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")

SHAPES = {
    "llama": Shape(extra={"attention_bias": True}),
    "llama of odd vocabulary": Shape(vocab_size=321, tied=True),
    "mistral": Shape(family="mistral", extra={"sliding_window": 24}),
    "qwen2": Shape(family="qwen2", tied=True),
    "qwen3_moe": Shape(family="qwen3_moe", std=0.2),
    "qwen2_moe": Shape(family="qwen2_moe", std=0.2),
    "one key head": Shape(family="qwen3_moe", num_heads=12, num_kv_heads=1, intermediate_size=96, std=0.2),
    "gemma3": Shape(family="gemma3_text", std=0.2),
    "deepseek_v2": Shape(family="deepseek_v2", std=0.2),
    "qwen3_next": Shape(family="qwen3_next", std=0.2),
}
WIDE = Shape(family="qwen3", hidden_size=256, num_heads=8, num_kv_heads=4, head_dim=32, intermediate_size=512, std=0.2)
"""Whose parts are whole groups of every format."""
GREEDY = SamplingConfig(temperature=0.0, max_tokens=8, ignore_eos=True)
DRAWN = [
    SamplingConfig(temperature=1.0, top_p=0.9, seed=7, max_tokens=16, ignore_eos=True),
    SamplingConfig(temperature=0.8, top_k=20, seed=8, max_tokens=16, ignore_eos=True, frequency_penalty=0.5),
    SamplingConfig(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=2),
]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def folder_of(root: Path, name: str) -> Path:
    folder = root / name
    return folder if folder.exists() else checkpoints.write(folder, SHAPES[name])


def prompts_of(count: int) -> list[tuple[int, ...]]:
    """Some with a common beginning, which is found in the cache."""
    chooser = random.Random(3)
    common = tuple(chooser.choices(range(3, 320), k=48))
    lengths = [(chooser.choice((0, 16, 40, 48)), own) for own in range(1, count + 1)]
    return [common[:shared] + tuple(chooser.choices(range(3, 320), k=own)) for shared, own in lengths]


def answers(
    runner: ModelRunner, samplings: list[SamplingConfig], count: int = 12, budget: int = 40, stages: int = 1
) -> tuple[list[list[int]], list[float], int]:
    """Ids of answers to `prompts_of`, all at once, the logprobs of all together, and how many were preempted.

    stages: steps in flight.
    """
    scheduler, prompts = scheduler_of(runner, budget=budget, stages=stages), prompts_of(count)
    found: list[list[int]] = [[] for _ in prompts]
    logprobs: list[tuple[int, float]] = []
    for index, prompt in enumerate(prompts):
        sampling = samplings[index % len(samplings)]
        assert scheduler.submit(EngineRequest(request_id=str(index), prompt=prompt, sampling=sampling), 0.0) is None
    joins, now, flying = 0, 0.0, deque[LaunchedStep]()
    while scheduler.has_work:
        while len(flying) < stages and (plan := scheduler.plan(now)) is not None:
            joins, now = joins + len(plan.joins), now + 1
            flying.append(runner.launch(plan))
        for output in scheduler.commit(runner.collect(flying.popleft()), now):
            found[int(output.request_id)] += output.token_ids
            logprobs += [(int(output.request_id), one.logprob) for one in output.logprobs]
    return found, [logprob for _, logprob in sorted(logprobs, key=itemgetter(0))], joins - len(prompts)


@pytest.mark.parametrize(
    ("name", "ranks", "nodes"),
    [
        *((name, 2, 1) for name in SHAPES),
        *[("qwen3_moe", 4, 1), ("gemma3", 4, 1)],
        *[("llama of odd vocabulary", 2, 2), ("deepseek_v2", 2, 2), ("gemma3", 4, 4), ("qwen3_moe", 4, 2)],
    ],
)
def test_ranks_answer_as_one_process_does(root: Path, name: str, ranks: int, nodes: int) -> None:
    """With 4 ranks, two share a key head. On several nodes they sum in the same order, so with the same bits."""
    folder, sizes = folder_of(root, name), {"num_blocks": 22, "max_sequences": 8, "ops": cpu_ops()}
    for samplings in ([GREEDY], DRAWN):
        alone, logprobs, _ = answers(runner_of(folder, **sizes), samplings)
        with group_of(ranks, nodes) as group:
            together, found, num_preempted = answers(runner_of(folder, **sizes, group=group), samplings)
        assert together == alone
        assert found == pytest.approx(logprobs, abs=1e-3)
        assert bool(found) == (samplings == DRAWN)
    assert num_preempted > 0 or name in ("mistral", "qwen3_next")  # which free blocks behind windows and states


DEEP = {"qwen3_next": 8, "gemma3": 8}
"""Layers of models whose stages shall have layers of each kind, or only of some."""


@pytest.mark.parametrize(
    ("name", "ranks", "nodes", "stages"),
    [
        *((name, 2, 1, 2) for name in SHAPES if name != "qwen3_next"),
        *[("llama of odd vocabulary", 4, 1, 2), ("qwen3_moe", 4, 1, 2), ("deepseek_v2", 4, 1, 2)],
        *((name, 4, 1, 4) for name in ("llama", "qwen3_moe", "deepseek_v2")),
        *[("qwen3_next", 8, 1, 8), ("llama", 2, 2, 2), ("qwen3_moe", 4, 2, 2), ("deepseek_v2", 3, 3, 3)],
    ],
)
def test_stages_answer_as_one_process_does(root: Path, name: str, ranks: int, nodes: int, stages: int) -> None:
    """Steps are cut into up to six parts, sequences too, where no layer has a state. Of 8 stages some lack a group."""
    folder, sizes = root / f"{stages} stages of {name}", {"num_blocks": 26, "max_sequences": 8, "ops": cpu_ops()}
    checkpoints.write(folder, replace(SHAPES[name], num_layers=max(stages, DEEP.get(name, 3))))
    for samplings in ([GREEDY], DRAWN):
        alone, logprobs, _ = answers(runner_of(folder, **sizes), samplings, budget=200)
        with group_of(ranks, nodes, stages) as group:
            runner = runner_of(folder, **sizes, group=group, num_stages=stages)
            together, found, _ = answers(runner, samplings, budget=200, stages=stages)
        assert together == alone
        assert found == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.parametrize(("ranks", "nodes"), [(2, 1), (2, 2), (3, 3)])
def test_steps_from_which_nothing_is_sampled_end_in_all_stages(root: Path, ranks: int, nodes: int) -> None:
    """Else rank 0 sends the next one while hidden states of the one before are on their way over the same links."""
    folder, sizes = root / "steps without samples", {"num_blocks": 60, "ops": cpu_ops()}
    checkpoints.write(folder, replace(SHAPES["llama"], num_layers=ranks))
    prompt = tuple(random.Random(9).choices(range(3, 320), k=300))

    def answer(**given: Any) -> list[int]:
        runner = runner_of(folder, **sizes, **given)
        hand, stream = Hand(runner), Stream(prompt=prompt)
        for _ in range(4):
            hand.step([(stream, 64)])
        hand.run([stream], 8)
        return stream.answer

    alone = answer()
    with group_of(ranks, nodes, ranks) as group:
        assert answer(group=group, num_stages=ranks) == alone


@pytest.mark.parametrize("ops", [CPU, cpu_ops()], ids=lambda ops: ops.name)
@pytest.mark.parametrize(
    ("name", "ranks"), [("qwen3_moe", 2), ("one key head", 3), ("qwen2_moe", 4), ("qwen3_next", 2)]
)
def test_ranks_with_whole_experts_answer_as_one_process_does(root: Path, name: str, ranks: int, ops: Ops) -> None:
    """Three ranks have 3, 3 and 2 of 8 experts; of few tokens some ranks have none to compute."""
    folder, sizes = folder_of(root, name), {"num_blocks": 22, "max_sequences": 8, "ops": ops}
    for samplings in ([GREEDY], DRAWN):
        alone, logprobs, _ = answers(runner_of(folder, **sizes), samplings)
        with group_of(ranks) as group:
            together, found, _ = answers(runner_of(folder, **sizes, group=group, whole_experts=True), samplings)
        assert together == alone
        assert found == pytest.approx(logprobs, abs=1e-3)


@pytest.mark.parametrize("name", ["gpt-oss", "glm4-moe", "deepseek-v3"])
def test_whole_experts_of_other_families(root: Path, name: str) -> None:
    """Biases of every expert, tensors of all experts, groups of them, and a shared one that is divided."""
    folder = root / f"experts of {name}"
    family_checkpoints.write(folder, name)
    tokens = prompts_of(6)[-1]
    whole = runner_of(folder, ops=cpu_ops()).logits(tokens)
    with group_of(2) as group:
        parts = runner_of(folder, ops=cpu_ops(), group=group, whole_experts=True).logits(tokens)
    torch.testing.assert_close(parts, whole, atol=1e-4, rtol=1e-4)


def test_ranks_compute_without_kernels_of_their_own_too(root: Path) -> None:
    folder = folder_of(root, "llama of odd vocabulary")
    alone, *_ = answers(runner_of(folder, ops=CPU), [GREEDY], 3)
    with group_of(2) as group:
        assert answers(runner_of(folder, ops=CPU, group=group), [GREEDY], 3)[0] == alone


@pytest.mark.parametrize("kind", ["int8", "int4", "Q8_0", "Q4_K", "fp8 channel", "fp8 block", "gptq", "awq", "packed"])
def test_parts_of_quantized_weights_are_cut_between_groups(root: Path, kind: str) -> None:
    """Of formats made while reading and of those that the file has; numbers and scales are those of the whole."""
    folder, given = root / kind, {"quantization": kind}
    checkpoints.write(folder, WIDE)
    if kind.startswith("fp8"):
        fp8_checkpoints.convert(folder, kind.removeprefix("fp8 "))
        given = {"quantization": "auto"}
    elif kind in ("gptq", "awq", "packed"):
        integer_checkpoints.convert(folder, integer_checkpoints.Style(method=kind))
        given = {"quantization": "auto"}
    elif kind.startswith("Q"):
        folder, given = ggufs.write(folder, root / f"{kind}.gguf", kind=kind), {"quantization": "auto"}
    tokens = prompts_of(6)[-1]
    whole = runner_of(folder, ops=CPU, **given).logits(tokens)
    with group_of(2) as group:
        parts = runner_of(folder, ops=CPU, **given, group=group).logits(tokens)
    torch.testing.assert_close(parts, whole, atol=2e-3, rtol=1e-4)
    plain = runner_of(checkpoints.write(root / "plain", WIDE), ops=CPU).logits(tokens)
    assert not torch.allclose(plain, whole, atol=2e-3, rtol=1e-4)


UNDIVIDED = (
    *("olmo2", "olmo3", "olmoe", "minimax-m2", "granite4-dense", "bamba", "falcon-h1-normed", "nemotron-h-biases"),
    "mamba2-tied",
)
"""Norms go over all heads."""


@pytest.mark.parametrize("name", [name for name in family_configs.MODELS if name not in UNDIVIDED])
def test_ranks_compute_layers_of_other_families(root: Path, name: str) -> None:
    """Scaled residuals and logits, biases, layers side by side, norms with biases, no gates, matrices in one tensor."""
    family_checkpoints.write(root / name, name)
    tokens = prompts_of(6)[-1]
    whole = runner_of(root / name, ops=cpu_ops()).logits(tokens)
    with group_of(2) as group:
        parts = runner_of(root / name, ops=cpu_ops(), group=group).logits(tokens)
    torch.testing.assert_close(parts, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", family_configs.MODELS)
def test_stages_compute_layers_of_other_families(root: Path, name: str) -> None:
    """Those whose heads cannot be divided too; of a text of several parts, all of whose logits are wanted."""
    folder = root / f"stages of {name}"
    family_checkpoints.write(folder, name)
    tokens = tuple(random.Random(5).choices(range(3, 100), k=100))
    whole = runner_of(folder, ops=cpu_ops()).logits(tokens)
    with group_of(2, stages=2) as group:
        parts = runner_of(folder, ops=cpu_ops(), group=group, num_stages=2).logits(tokens)
    torch.testing.assert_close(parts, whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "why"), [("llama", ""), ("qwen3_next", "the recurrent states of several ranks")])
def test_ranks_draft_where_no_state_is_taken_back(root: Path, name: str, why: str) -> None:
    folder = folder_of(root, name)
    assert runner_of(folder, ops=cpu_ops()).facts.no_drafts == ""
    with group_of(2) as group:
        found = runner_of(folder, ops=cpu_ops(), group=group).facts.no_drafts
    assert found.startswith(why)
    assert bool(found) == bool(why)


def test_copied_blocks_are_copied_on_every_rank(root: Path) -> None:
    folder = folder_of(root, "llama")

    def answer(group: tuple[Collectives, ...]) -> list[int]:
        runner = runner_of(folder, group=group)
        hand, first = Hand(runner), Stream(prompt=tuple(range(3, 20)))
        hand.step([(first, 17)])
        second = Stream(prompt=first.prompt, computed=16)
        second.columns = [hand.column(), hand.column()]
        copies = [BlockCopy(old[0], new[0]) for old, new in zip(first.columns, second.columns, strict=False)]
        hand.step([(second, 1)], copies)
        hand.run([first, second], 8)
        assert first.answer == second.answer
        return second.answer

    with group_of(2) as group:
        assert answer(group) == answer(())


def test_a_model_without_a_vocabulary_is_pooled_by_ranks(root: Path) -> None:
    folder = checkpoints.write(root / "pooled", Shape(), head="ForSequenceClassification")

    def pooled(group: tuple[Collectives, ...]) -> bytes:
        runner = runner_of(folder, group=group)
        scheduler = scheduler_of(runner, budget=16)
        config, sampling = PoolingConfig(kind="labels"), SamplingConfig(max_tokens=1)
        request = EngineRequest(request_id="a", prompt=tuple(range(40)), sampling=sampling, pooling=config)
        assert scheduler.submit(request, 0.0) is None
        found = b""
        while (plan := scheduler.plan(0.0)) is not None:
            for output in scheduler.commit(runner.collect(runner.launch(plan)), 0.0):
                found += output.pooled
        return found

    with group_of(2) as group:
        several = torch.frombuffer(bytearray(pooled(group)), dtype=torch.float32)
    torch.testing.assert_close(several, torch.frombuffer(bytearray(pooled(())), dtype=torch.float32))


@pytest.mark.parametrize("operation", ["all_reduce", "gather", "broadcast"])
def test_the_model_ends_where_the_first_rank_fails_within_a_step(root: Path, operation: str) -> None:
    """The others are in the exchanges of that step, and would take those of the next for them."""
    folder = folder_of(root, "llama")
    with group_of(2) as (first, second):
        failing = WithoutMemory(first)
        runner = runner_of(folder, group=(failing, second))
        hand, stream = Hand(runner), Stream(prompt=tuple(range(3, 40)))
        hand.step([(stream, 8)])
        assert runner.failure == ""
        failing.fails = operation
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            hand.step([(stream, 29)])
        assert runner.failure == "rank 0: can't allocate memory: 1 byte"
        failing.fails = ""
        with pytest.raises(RankLostError, match=r"^rank 0: can't allocate memory"):
            Hand(runner).step([(Stream(prompt=(3, 4, 5)), 2)])
