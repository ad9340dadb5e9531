"""A head changes no answer, drafts what its own code drafts, and takes up a text of which it has missed a part."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from fakes import checkpoints, draft_heads
from fakes.by_hand import scheduler_of
from fakes.checkpoints import Shape
from fakes.draft_heads import Judge
from fakes.drafter import DraftCounts
from fakes.mixtures import WISHES, request, served, told
from kvasir_api.cache_groups import FULL
from kvasir_api.options import ServeOptions
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.plan import Chunk, StepPlan
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.speculation.drafters import Draft, ModelDrafter, TokenHistory
from kvasir_runtime.errors import StartError
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.runner.draft_head import HeadDrafter, UnreadFeatures
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.wire import BeamSearchConfig, EngineRequest, Grammar, SamplingConfig

pytestmark = pytest.mark.skipif(library() is None, reason="this installation has no C++ kernels")

NUM_TOKENS = 128
HEADS = (
    *("eagle3", "eagle3 by chance", "eagle3 trained"),
    *("glm4-moe", "glm4-moe by chance", "glm4-moe trained"),
    *("glm-flash", "deepseek-v3", "qwen3-next", "qwen3.5"),
)
LONG = ("glm4-moe by chance", "glm4-moe trained")
"""Of which the head of the other family says the same in less time."""
TRAINING_STEPS = 60
"""After which a head drafts right more often than not; some 3 seconds."""
FEW = tuple(range(len(WISHES))) if os.environ.get("KVASIR_FAMILY_MATRIX") == "all" else (0, 2, 6)
"""Wishes that are enough, since a draft model is tried with all of them: greedy, filtered with a seed, penalties."""
SEVEN = Shape(num_layers=7, std=0.06, seed=3)
NEXT = Shape(family="qwen3_next", num_layers=4, seed=11)


@dataclass(frozen=True, slots=True)
class Pair:
    """A model, what --speculation names for its head, and what that drafts."""

    folder: Path
    speculation: str
    judge: Judge


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("models")

    @cache
    def written(name: str) -> Pair:
        folder = root / name
        if name == "qwen3-next":
            return Pair(folder, "mtp", draft_heads.write_next(folder, NEXT))
        if name == "qwen3.5":
            return Pair(folder, "mtp", draft_heads.write_qwen3_5(folder))
        family, _, how = name.partition(" ")
        steps = TRAINING_STEPS if how == "trained" else 0
        if family != "eagle3":
            judge = draft_heads.write_mtp(folder, family, likely=not how, training_steps=steps)
            checkpoints.write_tokenizer(folder)
            return Pair(folder, "mtp", judge)
        folder = root / "seven"
        if not folder.exists():
            draft_heads.calmed(checkpoints.write(folder, SEVEN))
        judge = draft_heads.write_eagle3(
            root / name, folder, likely=not how, own_embedding=bool(how), training_steps=steps
        )
        return Pair(folder, str(root / name), judge)

    return written


def built(folder: Path, speculation: str, **options: Any) -> ModelRunner:
    sizes = {"kv_cache_tokens": 8192, "block_size": 8, "max_sequences": 12, "max_model_len": 512}
    given = {"dtype": "float32", "startup_cache": "", "speculation": speculation, **sizes, **options}
    return build(ServeOptions(model=str(folder), device="cpu", **given), lambda _: None)


def requests(num_tokens: int) -> list[EngineRequest]:
    made = [request(number, **{**WISHES[number], "max_tokens": num_tokens}) for number in FEW]
    beam = BeamSearchConfig(width=2, answers=("60", "60b"), early_stopping=False)
    return [*made, request(60, beam=beam, max_tokens=9)]


def heard(story: Any) -> dict[str, tuple[object, ...]]:
    return {name: told(events) for name, events in story.items()}


class Copied(TorchDispatchMode):
    """Counts the numbers that are copied to another place."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.cat.default, torch.ops.aten.clone.default):
            self.count += out.numel()
        return out


def test_a_step_without_drafts_copies_its_own_hidden_states_only() -> None:
    """Those of 512 tokens wait to be read, and each step adds one and drops one."""
    facts = SimpleNamespace(max_batch_tokens=512, attentions=(FULL,))
    rows = SimpleNamespace(arrays=(np.zeros((1, 2048)), [np.zeros((1, 256))], None))
    cache = SimpleNamespace(blocks=torch.zeros(8, 1), block_size=8)
    unused: Any = None
    drafter = HeadDrafter(unused, cache, 2048, rows, unused, facts)  # type: ignore[arg-type]
    drafter.saw([Chunk(row=0, start=0, num_tokens=512, samples=True)], torch.zeros(512, 64))
    with Copied() as copied:
        for place in range(512, 1200):
            drafter.saw([Chunk(row=0, start=place, num_tokens=1, samples=True)], torch.zeros(1, 64))
    assert 688 * 64 <= copied.count < 3 * 688 * 64


@given(steps=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 12), st.integers(0, 8)), max_size=30))
def test_unread_features_are_those_of_their_positions(steps: list[tuple[int, int, int]]) -> None:
    """Each step gives so many positions, the first of them so many before the end, and drops so many of all."""
    unread, want, number = UnreadFeatures(5), list[int](), 0
    for count, back, dropped in steps:
        start = max(unread.start, unread.end - back)
        del want[start - unread.start :]
        part = list(range(number, number := number + count))
        unread.add(start, torch.tensor(part)[:, None])
        want += part
        if dropped < len(want):
            unread.drop(dropped)
            del want[:dropped]
        assert (len(unread), unread.end - unread.start) == (len(want), len(want))
        assert unread.of(unread.start, unread.end).flatten().tolist() == want
        middle = len(want) // 2
        assert unread.of(unread.start + middle, unread.end).flatten().tolist() == want[middle:]


class FewDrafts(ModelDrafter):
    """At most 4 for each sequence."""

    def propose(self, history: TokenHistory, most: int) -> Draft:
        return super().propose(history, min(most, 4))


def drafting(made: ModelRunner, budget: int = 64) -> Scheduler:
    """One that has drafts in each step that decodes."""
    return scheduler_of(made, budget=budget, speculation="suffix", drafter=FewDrafts())


class Recorder:
    """A runner that keeps what it drafted: the text before, and the drafts behind it."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner, self.facts, self.hash_salt = runner, runner.facts, runner.hash_salt
        self._texts: dict[int, list[int]] = {}
        self.drafted: list[tuple[list[int], list[int]]] = []

    def launch(self, plan: StepPlan) -> Any:
        for join in plan.joins:
            self._texts[join.row] = list(join.tokens)
        return self._runner.launch(plan)

    def collect(self, step: Any) -> Any:
        results = self._runner.collect(step)
        for chunk in step.plan.chunks:
            if chunk.drafts:
                self.drafted.append((list(self._texts[chunk.row]), list(chunk.drafts)))
        for sampled in results.sampled:
            self._texts[sampled.row] += sampled.tokens
        return results


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name in LONG)) for name in HEADS])
def test_drafts_change_no_answer(pair: Any, name: str) -> None:
    own = pair(name)
    made = built(own.folder, own.speculation)
    scheduler = drafting(made)
    story = served(made, requests(NUM_TOKENS), depth=1, scheduler=scheduler)
    totals = scheduler.report(RuntimeState()).totals
    want = served(built(own.folder, "off"), requests(NUM_TOKENS), depth=1, budget=64)
    assert heard(story) == heard(want)
    assert totals.drafted_tokens > 2 * NUM_TOKENS
    assert totals.accepted_tokens < totals.drafted_tokens
    if not name.endswith("by chance"):
        assert totals.accepted_tokens > NUM_TOKENS / 8


@pytest.mark.parametrize("family", ["eagle3", "glm4-moe"])
def test_a_head_has_learned_to_draft(pair: Any, family: str) -> None:
    """One of random weights with the same layers does not, so nothing but its training makes it right."""

    def accepted(name: str) -> float:
        made = built(pair(name).folder, pair(name).speculation)
        scheduler = drafting(made)
        served(made, [request(number, max_tokens=48) for number in range(4)], depth=1, scheduler=scheduler)
        totals = scheduler.report(RuntimeState()).totals
        assert totals.drafted_tokens > 48
        return totals.accepted_tokens / totals.drafted_tokens

    assert accepted(f"{family} by chance") < 0.05
    assert accepted(f"{family} trained") > 0.25


@pytest.mark.parametrize("name", ["eagle3", "qwen3-next"])
def test_drafts_of_texts_beside_those_of_a_head_change_no_answer(pair: Any, name: str) -> None:
    own = pair(name)
    made = built(own.folder, own.speculation)
    scheduler = scheduler_of(made, budget=64, speculation="model")
    counts = DraftCounts(scheduler)
    story = served(made, requests(NUM_TOKENS), depth=1, scheduler=scheduler)
    assert heard(story) == heard(served(built(own.folder, "off"), requests(NUM_TOKENS), depth=1, budget=64))
    assert counts.of_texts > 16
    assert counts.of_model > NUM_TOKENS / 4


def test_drafts_change_no_answer_in_16_bits(pair: Any) -> None:
    """Of an engine that gives hidden states; one without a head computes in one call of C++, with other last bits."""
    own = pair("eagle3")
    options: dict[str, Any] = {"dtype": "bfloat16", "batch_invariant": True}
    try:
        plain, made = (built(own.folder, own.speculation, **options) for _ in range(2))
    except StartError as error:
        pytest.skip(str(error))
    scheduler = drafting(made)
    story = served(made, requests(128), depth=1, scheduler=scheduler)
    want = served(plain, requests(128), depth=1, budget=64)
    assert {name: one[0] for name, one in heard(story).items()} == {name: one[0] for name, one in heard(want).items()}
    assert scheduler.report(RuntimeState()).totals.accepted_tokens > 16


@pytest.mark.parametrize("name", ["eagle3", "glm4-moe"])
def test_drafts_change_no_answer_of_a_grammar(pair: Any, name: str) -> None:
    """Beside one without: tokens that a grammar forces follow the last one in a step, whose hidden states are new."""
    own, grammar = pair(name), Grammar(kind="regex", text="([a-d]{1,5}(The operator watches|A block of the cache)){12}")
    wishes = ({}, {"temperature": 1.0, "seed": 5}, {"temperature": 0.9, "seed": 7, "top_k": 20, "logprobs": 1})
    asked = [request(number, **wish, max_tokens=160, grammar=grammar) for number, wish in enumerate(wishes)]
    asked.append(request(7, max_tokens=160))
    made = built(own.folder, own.speculation)
    scheduler = drafting(made)
    story = served(made, asked, depth=1, scheduler=scheduler)
    totals = scheduler.report(RuntimeState()).totals
    assert heard(story) == heard(served(built(own.folder, "off"), asked, depth=1, budget=64))
    assert totals.drafted_tokens > 160
    assert totals.accepted_tokens > 16


def test_requests_that_lose_their_blocks_go_on_as_they_were(pair: Any) -> None:
    """The cache holds a few of them, so that blocks change hands all the time."""
    own = pair("eagle3")
    asked = [request(number, **{**WISHES[number % 3], "max_tokens": 60}) for number in range(6)]
    made = built(own.folder, own.speculation, kv_cache_tokens=240, max_model_len=128)
    scheduler = drafting(made, budget=20)
    story = served(made, asked, depth=1, scheduler=scheduler)
    totals = scheduler.report(RuntimeState()).totals
    assert totals.preemptions > 0
    assert totals.accepted_tokens > 0
    assert heard(story) == heard(served(built(own.folder, "off"), asked, depth=1))


def drafted_as(judge: Judge, drafted: list[tuple[list[int], list[int]]], first: int = 0) -> None:
    """Of two ids that are as likely in float32 either may be drafted, once."""
    several = [(text, drafts) for text, drafts in drafted if len(drafts) > 1][:8]
    assert several
    assert sum(judge.drafts(text, len(drafts), first) == drafts for text, drafts in several) >= len(several) - 1


@pytest.mark.parametrize("name", HEADS)
def test_drafts_are_those_of_the_heads_own_code(pair: Any, name: str) -> None:
    """Prompts come in chunks, and each step brings other numbers of tokens."""
    own, asked = pair(name), [request(number, max_tokens=10) for number in range(3)]
    made = Recorder(built(own.folder, own.speculation))
    served(made, asked, depth=1, scheduler=drafting(made, budget=12))  # type: ignore[arg-type]
    drafted_as(own.judge, made.drafted)


def test_behind_a_wrong_draft_of_a_model_with_a_state_the_head_drafts_at_once(pair: Any) -> None:
    """What was right is computed again in the next step; its hidden states are those of the step before."""
    own = pair("qwen3-next")
    made = Recorder(built(own.folder, own.speculation))
    scheduler = drafting(made)  # type: ignore[arg-type]
    wanted = list[tuple[Chunk, Chunk]]()
    launch = made.launch

    def launched(plan: StepPlan) -> Any:
        step = launch(plan)
        wanted.extend(zip(plan.chunks, step.plan.chunks, strict=True))
        return step

    made.launch = launched  # type: ignore[method-assign]
    served(made, [request(0, max_tokens=100)], depth=1, scheduler=scheduler)  # type: ignore[arg-type]
    again = [pair for pair in wanted if pair[0].drafts and pair[0].num_tokens - len(pair[0].drafts) > 1]
    assert len(again) > 5
    assert [len(chunk.drafts) for _, chunk in again] == [len(chunk.drafts) for chunk, _ in again]


def test_what_went_by_unread_is_left_out(pair: Any) -> None:
    """Hidden states of the last 16 of 40 tokens are there when the first draft is wanted."""
    own, prompt = pair("eagle3"), tuple(range(100, 140))
    made = Recorder(built(own.folder, own.speculation, max_batch_tokens=16))
    greedy = SamplingConfig(temperature=0.0, max_tokens=40, ignore_eos=True)
    asked = [EngineRequest(request_id="1", prompt=prompt, sampling=greedy)]
    served(made, asked, depth=1, scheduler=drafting(made, budget=16))  # type: ignore[arg-type]
    drafted_as(own.judge, made.drafted, first=24)


def test_a_shared_prefix_is_read_once(pair: Any) -> None:
    own, prompt = pair("eagle3"), tuple(range(100, 144))
    made = Recorder(built(own.folder, own.speculation))
    scheduler = drafting(made)  # type: ignore[arg-type]
    greedy = SamplingConfig(temperature=0.0, max_tokens=40, ignore_eos=True)
    for name in ("1", "2"):
        del made.drafted[:]
        asked = [EngineRequest(request_id=name, prompt=prompt, sampling=greedy)]
        served(made, asked, depth=1, scheduler=scheduler)  # type: ignore[arg-type]
        drafted_as(own.judge, made.drafted)
    assert scheduler.report(RuntimeState()).totals.uncached_prompt_tokens == 44 + 4
