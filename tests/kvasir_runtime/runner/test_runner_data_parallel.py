"""Ranks with requests of their own share the experts, and answer as one process does, whatever requests wish.

The ranks are threads here, with the memory and the code of processes. Processes: startup/test_rank_processes.py.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes import checkpoints, family_checkpoints, family_configs
from fakes.by_hand import Hand, Stream, runner_of, scheduler_of
from fakes.checkpoints import EOS_TOKEN_ID, Shape
from fakes.grammars import of_schema
from fakes.mixtures import Story, mixed, request, served, told
from fakes.ranks import WithoutMemory, group_of
from kvasir_api.state import RequestTotals, RuntimeState
from kvasir_runtime.errors import RankLostError
from kvasir_runtime.guide import validate, vocabulary
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.kernels.cpu import library
from kvasir_runtime.kernels.cpu.ops import CPU, cpu_ops
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.registry import family_of
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import EngineRequest, SamplingConfig

pytestmark = pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")

SHAPES = {
    "qwen3_moe": Shape(family="qwen3_moe", std=0.2),
    "qwen2_moe": Shape(family="qwen2_moe", std=0.2),
    "one key head": Shape(family="qwen3_moe", num_heads=12, num_kv_heads=1, intermediate_size=96, std=0.2, tied=True),
    "deepseek_v2": Shape(family="deepseek_v2", std=0.2),
    "qwen3_next": Shape(family="qwen3_next", std=0.2, num_layers=4),
}
"""A shared expert, a vocabulary in one matrix, latents behind a layer without experts, and states."""
SCHEMA = {
    "x-guidance": {"whitespace_flexible": False},
    "type": "object",
    "properties": {"service": {"enum": ["operator", "gateway"]}, "name": {"type": "string", "maxLength": 12}},
    "required": ["service", "name"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def folder_of(root: Path, name: str) -> Path:
    folder = root / name
    return folder if folder.exists() else checkpoints.write(folder, SHAPES[name])


class RankCounter:
    """Counts at a runner how many sequences each rank has computed in a step at once, and joins."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner, self.facts = runner, runner.facts
        self._each = runner.facts.num_blocks // runner.facts.data_ranks
        self._rank_of: dict[int, int] = {}
        self.joins, self.of_step = 0, set[frozenset[int]]()

    def launch(self, plan: Any) -> Any:
        self.joins += len(plan.joins)
        for join in plan.joins:
            blocks = [block for table in join.tables for block in table if block >= 0]
            self._rank_of[join.row] = blocks[0] // self._each
        self._rank_of |= {fork.row: self._rank_of[fork.source] for fork in plan.forks}
        self.of_step.add(frozenset(self._rank_of[chunk.row] for chunk in plan.chunks))
        return self._runner.launch(plan)

    def collect(self, step: Any) -> Any:
        return self._runner.collect(step)

    @property
    def hash_salt(self) -> bytes:
        return self._runner.hash_salt


def answers(runner: Any, requests: Sequence[EngineRequest], **how: Any) -> dict[str, tuple[object, ...]]:
    return {name: told(events) for name, events in served(runner, list(requests), **how).items()}


def check(root: Path, name: str, ranks: int, *, whole_experts: bool, num_blocks: int, **how: Any) -> RankCounter:
    """Of all wishes at once. num_blocks: of each rank, and of one process alone."""
    folder, sizes = folder_of(root, name), {"max_sequences": 8, "ops": cpu_ops()}
    alone = answers(runner_of(folder, **sizes, num_blocks=200), mixed(), **how)
    sizes |= {"num_blocks": num_blocks * ranks, "whole_experts": whole_experts, "data_parallel": True}
    with group_of(ranks) as group:
        counter = RankCounter(runner_of(folder, **sizes, group=group))
        assert answers(counter, mixed(), **how) == alone
    assert {rank for step in counter.of_step for rank in step} == set(range(ranks))
    return counter


@pytest.mark.parametrize("whole_experts", [True, False], ids=["whole", "parts"])
@pytest.mark.parametrize("name", SHAPES)
def test_ranks_with_requests_of_their_own_answer_as_one_process_does(
    root: Path, name: str, *, whole_experts: bool
) -> None:
    """Chunked, two steps in flight; a rank has no tokens in some steps, and each its own in others."""
    counter = check(root, name, 2, whole_experts=whole_experts, num_blocks=60, depth=2, budget=24, every=2)
    assert {frozenset({0}), frozenset({0, 1})} <= counter.of_step


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v2"])
def test_requests_that_lose_their_blocks_answer_as_one_process_does(root: Path, name: str) -> None:
    """Of whole prompts in each step; a request may come back at another rank."""
    counter = check(root, name, 2, whole_experts=True, num_blocks=13, depth=1, budget=200)
    assert counter.joins > len(mixed())


@pytest.mark.long
@pytest.mark.parametrize("whole_experts", [True, False], ids=["whole", "parts"])
@pytest.mark.parametrize("name", SHAPES)
def test_four_ranks_answer_as_one_process_does(root: Path, name: str, *, whole_experts: bool) -> None:
    check(root, name, 4, whole_experts=whole_experts, num_blocks=30, depth=2, budget=40)


@pytest.mark.parametrize("speculation", ["off", "ngram", "auto"])
@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v2"])
def test_guided_and_drafted_answers_are_those_of_one_process(root: Path, name: str, speculation: str) -> None:
    folder = folder_of(root, name)
    words = vocabulary.load(folder, 320, (EOS_TOKEN_ID,))
    grammar = validate.verdict(of_schema({"type": "array", "items": SCHEMA, "minItems": 3, "maxItems": 3}), words)
    wishes: list[dict[str, Any]] = [{}, {"temperature": 1.0, "seed": 3}, {"frequency_penalty": 1.0}]
    guided = [request(number, max_tokens=120, grammar=grammar.grammar, **one) for number, one in enumerate(wishes)]
    requests = [*guided, *(request(number, max_tokens=60, **one) for number, one in enumerate(wishes, 3))]

    def story(**given: Any) -> tuple[Story, RequestTotals]:
        compiler = GrammarCompiler(lambda: words, (EOS_TOKEN_ID,))
        runner = runner_of(folder, max_sequences=8, ops=cpu_ops(), grammars=compiler, **given)
        scheduler = scheduler_of(runner, budget=64, speculation=speculation)
        return served(runner, requests, depth=1, scheduler=scheduler), scheduler.report(RuntimeState()).totals

    alone, _ = story()
    with group_of(2) as group:
        together, totals = story(group=group, whole_experts=True, data_parallel=True)
    assert {one: told(events)[:4] for one, events in together.items()} == {
        one: told(events)[:4] for one, events in alone.items()
    }
    assert (totals.accepted_tokens > 10) == (speculation == "ngram") or speculation == "auto"


def test_a_prefix_is_found_at_its_rank_by_its_tenant_alone(root: Path) -> None:
    folder, prefix = folder_of(root, "deepseek_v2"), tuple(range(3, 67))

    def cached(runner: ModelRunner) -> dict[str, tuple[list[int], int]]:
        scheduler, found = scheduler_of(runner, budget=64), dict[str, tuple[list[int], int]]()
        for number, salt in enumerate((b"a", b"b", b"a", b"b", b"a")):
            made = request(number, max_tokens=4)
            asked = EngineRequest(
                request_id=str(number),
                prompt=(*prefix, 70 + number),
                sampling=made.sampling,
                salt=salt,
                tenant=salt.decode(),
            )
            assert scheduler.submit(asked, 0.0) is None
            while (plan := scheduler.plan(0.0)) is not None:
                for output in scheduler.commit(runner.collect(runner.launch(plan)), 0.0):
                    ids, _ = found.get(output.request_id, ([], 0))
                    found[output.request_id] = [*ids, *output.token_ids], output.cached_tokens
        return found

    alone = cached(runner_of(folder, ops=cpu_ops()))
    with group_of(2) as group:
        assert cached(runner_of(folder, ops=cpu_ops(), group=group, data_parallel=True)) == alone
    assert [tokens for _, tokens in alone.values()] == [0, 0, 64, 64, 64]


@pytest.mark.parametrize("name", family_configs.MODELS)
@pytest.mark.parametrize("whole_experts", [True, False], ids=["whole", "parts"])
def test_ranks_share_experts_of_other_families(root: Path, name: str, *, whole_experts: bool) -> None:
    """Biases of every expert and behind attention, tensors of all experts, groups of them, spaces of their own."""
    folder = root / f"{whole_experts} {name}"
    family_checkpoints.write(folder, name)
    prompts = [tuple(range(start, start + 20)) for start in (3, 30, 50)]
    sampling = SamplingConfig(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    requests = [
        EngineRequest(request_id=str(number), prompt=prompt, sampling=sampling) for number, prompt in enumerate(prompts)
    ]
    spec = family_of(read_config(folder, "")).spec(read_config(folder, ""))
    given = {"whole_experts": whole_experts, "data_parallel": True, "ops": cpu_ops()}
    with group_of(2) as group:
        if spec.experts is None:
            with pytest.raises(
                ValueError, match="the model has no experts that ranks could share: let several replicas"
            ):
                runner_of(folder, **given, group=group)
            return
        counter = RankCounter(runner_of(folder, **given, group=group))
        together = answers(counter, requests, depth=1)
    assert counter.of_step >= {frozenset({0, 1})}
    assert together == answers(runner_of(folder, ops=cpu_ops()), requests, depth=1)


def test_ranks_compute_without_kernels_of_their_own_too(root: Path) -> None:
    folder, requests = folder_of(root, "qwen3_moe"), [request(number, max_tokens=6) for number in range(6)]
    alone = answers(runner_of(folder, ops=CPU), requests, depth=1)
    with group_of(2) as group:
        assert answers(runner_of(folder, ops=CPU, group=group, data_parallel=True), requests, depth=1) == alone


@pytest.mark.parametrize("operation", ["all_reduce", "broadcast"])
def test_the_model_ends_where_the_first_rank_fails_within_a_step(root: Path, operation: str) -> None:
    with group_of(2) as (first, second):
        failing = WithoutMemory(first)
        runner = runner_of(folder_of(root, "qwen3_moe"), group=(failing, second), data_parallel=True)
        hand, stream = Hand(runner), Stream(prompt=tuple(range(3, 40)))
        hand.step([(stream, 8)])
        failing.fails = operation
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            hand.step([(stream, 29)])
        assert runner.failure == "rank 0: can't allocate memory: 1 byte"
        failing.fails = ""
        with pytest.raises(RankLostError, match=r"^rank 0: can't allocate memory"):
            Hand(runner).step([(Stream(prompt=(3, 4, 5)), 2)])
