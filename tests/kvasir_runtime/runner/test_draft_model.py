"""A draft model changes no answer, reads each text once, and drafts as the request draws."""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import runner_of, scheduler_of, use_draft_model
from fakes.checkpoints import Shape
from fakes.draft_plans import Reader, plan_of, run
from fakes.drafter import DraftCounts
from fakes.mixtures import WISHES, Story, request, served, told
from kvasir_api.cache_groups import LayerAttention
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.plan import UNDRAFTED, Chunk, Fork
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.speculation.drafters import ModelDrafter
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.runner.draft_model import whole_group
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.wire import BeamSearchConfig, EngineFacts, EngineRequest, SamplingConfig

pytestmark = pytest.mark.skipif((found := library()) is None, reason="this installation has no C++ kernels")

NUM_TOKENS = 128
FEW = (0, 2, 6)
"""Wishes that are enough where others have them all: greedy, filtered, penalties."""
WINDOWS = {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 24}
MODELS = {
    "dense": Shape(),
    "windows": Shape(family="qwen2", extra=WINDOWS, tied=True, seed=6),
    "whole-step": Shape(dtype=torch.bfloat16, intermediate_size=160, num_layers=3),
}
DRAFTERS = {
    "the model itself": None,
    "another": Shape(family="qwen3", num_layers=1, hidden_size=32, num_heads=2, seed=21),
    "latent": Shape(family="deepseek_v2", std=0.2, seed=12),
    "windows": MODELS["windows"],
    "more ids": Shape(vocab_size=352, seed=22),
    "fewer ids": Shape(vocab_size=288, seed=23),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def written(root: Path, name: str, shape: Shape) -> Path:
    return root / name if (root / name).exists() else checkpoints.write(root / name, shape)


def near(root: Path, name: str) -> Path:
    """A model whose weights differ from those of another by so little that many of its tokens are the same."""
    folder, shape = root / f"near {name}", MODELS[name]
    if not folder.exists():
        checkpoints.write(folder, shape)
        noise = torch.Generator().manual_seed(9)
        weights = {
            key: value + (0.01 * torch.randn(value.shape, generator=noise)).to(value.dtype)
            for key, value in checkpoints.random_weights(shape).items()
        }
        checkpoints.write_weights(folder, weights)
    return folder


def runner(root: Path, name: str, num_blocks: int = 1024) -> ModelRunner:
    dtype = torch.bfloat16 if name == "whole-step" else torch.float32
    folder = written(root, name, MODELS[name])
    return runner_of(folder, num_blocks=num_blocks, max_sequences=12, ops=cpu_ops(batch_invariant=True), dtype=dtype)


def requests(name: str) -> list[EngineRequest]:
    some = range(len(WISHES)) if name == "dense" else FEW
    made = [request(number, **{**WISHES[number], "max_tokens": NUM_TOKENS}) for number in some]
    beam = BeamSearchConfig(width=2, answers=("60", "60b"), early_stopping=False)
    return [*made, request(60, beam=beam, max_tokens=9)]


def heard(name: str, story: Story) -> dict[str, tuple[object, ...]]:
    """All that clients hear; of logits of 16 bits some are equal, and which of them are reported has no order."""
    by_name = {one: told(events) for one, events in story.items()}
    return {one: all_[:4] + all_[5:] if name == "whole-step" else all_ for one, all_ in by_name.items()}


def drafting(made: ModelRunner, budget: int = 64) -> Scheduler:
    """One that has drafts in each step that decodes."""
    return scheduler_of(made, budget=budget, speculation="suffix", drafter=ModelDrafter())


@pytest.fixture(scope="module")
def plain(root: Path):
    return cache(lambda name: served(runner(root, name), requests(name), depth=1, budget=64))


@pytest.mark.parametrize("name", MODELS)
def test_drafts_of_which_some_are_wrong_change_no_answer(root: Path, plain, name: str):
    made = runner(root, name)
    dtype = torch.bfloat16 if name == "whole-step" else torch.float32
    use_draft_model(made, near(root, name), ops=cpu_ops(), dtype=dtype)
    scheduler = drafting(made)
    story = served(made, requests(name), depth=1, scheduler=scheduler)
    totals = scheduler.report(RuntimeState()).totals
    assert heard(name, story) == heard(name, plain(name))
    assert totals.drafted_tokens > 2 * NUM_TOKENS
    assert 0 < totals.accepted_tokens < totals.drafted_tokens


@pytest.mark.parametrize("name", MODELS)
def test_drafts_of_a_model_and_of_texts_in_one_step_change_no_answer(root: Path, plain, name: str):
    """Greedy answers of a small model repeat themselves, the others do not."""
    made = runner(root, name)
    dtype = torch.bfloat16 if name == "whole-step" else torch.float32
    use_draft_model(made, near(root, name), ops=cpu_ops(), dtype=dtype)
    scheduler = scheduler_of(made, budget=64, speculation="model")
    counts = DraftCounts(scheduler)
    assert heard(name, served(made, requests(name), depth=1, scheduler=scheduler)) == heard(name, plain(name))
    assert counts.of_texts > NUM_TOKENS / 4
    assert counts.of_model > NUM_TOKENS / 2
    assert scheduler.report(RuntimeState()).totals.accepted_tokens > NUM_TOKENS / 2


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_model_of_any_kind_may_draft(root: Path, plain, drafter: str):
    made, shape = runner(root, "dense"), DRAFTERS[drafter]
    use_draft_model(made, written(root, drafter, shape or MODELS["dense"]), ops=cpu_ops(batch_invariant=True))
    scheduler = drafting(made)
    asked = [one for one in requests("dense") if shape is None or int(one.request_id) in FEW]
    story = served(made, asked, depth=1, scheduler=scheduler)
    totals = scheduler.report(RuntimeState()).totals
    want = heard("dense", plain("dense"))
    assert heard("dense", story) == {name: want[name] for name in story}
    assert totals.drafted_tokens > 2 * NUM_TOKENS
    if shape is None:  # sampled, filtered, penalized or forced to go on: each token is drawn as it will be
        assert totals.accepted_tokens == totals.drafted_tokens


def test_requests_that_lose_their_blocks_go_on_as_they_were(root: Path, plain):
    """The cache holds a few of them, so that blocks change hands all the time; the model is the one that drafts."""
    made = runner(root, "dense", num_blocks=36)
    use_draft_model(made, root / "dense", ops=cpu_ops(batch_invariant=True))
    scheduler = drafting(made, budget=20)
    story = served(made, requests("dense"), depth=1, scheduler=scheduler)
    totals = scheduler.report(RuntimeState()).totals
    assert totals.preemptions > 0
    assert heard("dense", story) == heard("dense", plain("dense"))
    assert totals.accepted_tokens == totals.drafted_tokens > NUM_TOKENS


def test_a_text_that_the_model_cannot_read_to_its_end_has_wrong_drafts(root: Path):
    made = runner(root, "dense")
    use_draft_model(made, root / "dense", ops=cpu_ops(batch_invariant=True), longest=100)
    scheduler = drafting(made)
    story = served(made, [replaced := request(0, max_tokens=200)], depth=1, scheduler=scheduler)
    want = served(runner(root, "dense"), [replaced], depth=1)
    assert told(story["0"]) == told(want["0"])
    assert 0 < scheduler.report(RuntimeState()).totals.accepted_tokens <= 100


def with_reader(root: Path, max_batch_tokens: int = 4096, **more: Any) -> tuple[ModelRunner, Reader]:
    made = runner(root, "dense")
    made.facts = msgspec.structs.replace(made.facts, max_batch_tokens=max_batch_tokens)
    return made, use_draft_model(made, root / "dense", ops=cpu_ops(batch_invariant=True), wrap=Reader, **more)


PROMPT = tuple(range(20, 60))


def test_behind_the_longest_text_the_model_reads_nothing_and_one_wrong_draft_lets_the_sequence_rest(root: Path):
    made, reader = with_reader(root, longest=30)
    run(made, plan_of(1, Chunk(row=0, start=0, num_tokens=40, samples=True), PROMPT, tuple(range(8))))
    drafted = Chunk(row=0, start=40, num_tokens=4, samples=True, drafts=(UNDRAFTED,) * 3)
    (sampled,) = run(made, plan_of(2, drafted))
    assert (len(sampled.tokens), sampled.undrafted) == (1, 2)
    assert reader.passes == []


def test_what_was_read_with_a_prompt_is_not_read_again(root: Path):
    made, reader = with_reader(root)
    first = run(made, plan_of(1, Chunk(row=0, start=0, num_tokens=40, samples=True), PROMPT, tuple(range(8)),
                              drafter_follows=True))  # fmt: skip
    assert reader.passes == [40]
    drafted = Chunk(row=0, start=40, num_tokens=4, samples=True, drafts=(UNDRAFTED,) * 3)
    (sampled,) = run(made, plan_of(2, drafted))
    assert len(sampled.tokens) == 4
    assert sampled.undrafted == 0
    assert reader.passes == [40, 1, 1, 1]
    # The last draft was kept, and nothing has read it yet.
    run(made, plan_of(3, msgspec.structs.replace(drafted, start=44)))
    assert reader.passes[4:] == [2, 1, 1]
    assert first[0].tokens


def test_a_long_prompt_is_read_in_steps_of_their_size_and_has_drafts_then(root: Path):
    made, reader = with_reader(root, max_batch_tokens=16)
    run(made, plan_of(1, Chunk(row=0, start=0, num_tokens=40, samples=True), PROMPT, tuple(range(8))))
    assert reader.passes == []
    undrafted = []
    for step in range(4):
        chunk = Chunk(row=0, start=40 + step, num_tokens=3, samples=True, drafts=(UNDRAFTED,) * 2)
        (sampled,) = run(made, plan_of(2 + step, chunk))
        undrafted.append(sampled.undrafted)
        if sampled.undrafted:
            assert len(sampled.tokens) == 1
    assert undrafted == [2, 2, 0, 0]
    assert reader.passes == [16, 16, 11, 1, 1, 1]


def test_streams_do_not_wait_until_a_long_prompt_is_read(root: Path):
    """Of so many tokens as the step computes, and 64."""
    made, reader = with_reader(root)
    prompt, table = tuple(range(20, 170)), tuple(range(20))
    run(made, plan_of(1, Chunk(row=0, start=0, num_tokens=150, samples=True), prompt, table))
    for step in range(3):
        run(
            made, plan_of(2 + step, Chunk(row=0, start=150 + step, num_tokens=3, samples=True, drafts=(UNDRAFTED,) * 2))
        )
    assert reader.passes == [67, 67, 19, 1]


def test_a_shared_prefix_is_read_once_and_blocks_that_hold_something_else_are_read_again(root: Path):
    made, reader = with_reader(root)
    table = tuple(range(8))
    run(made, plan_of(1, Chunk(row=0, start=0, num_tokens=40, samples=True), PROMPT, table, drafter_follows=True))
    run(made, plan_of(2, Chunk(row=0, start=40, num_tokens=1, samples=True)))  # by now the prompt is certain
    del reader.passes[:]
    shared = Chunk(row=1, start=32, num_tokens=8, samples=True)
    run(made, plan_of(3, shared, PROMPT, (0, 1, 2, 3, 20, 21), computed=32, drafter_follows=True))
    assert reader.passes == [8]
    # The first blocks are given to another text, and then shared with a third.
    others = tuple(range(60, 100))
    run(made, plan_of(4, Chunk(row=2, start=0, num_tokens=40, samples=True), others, table))
    run(made, plan_of(5, Chunk(row=3, start=32, num_tokens=8, samples=True), others, (0, 1, 2, 3, 22, 23), computed=32,
                      drafter_follows=True))  # fmt: skip
    assert reader.passes == [8, 40]
    chunk = Chunk(row=3, start=40, num_tokens=5, samples=True, drafts=(UNDRAFTED,) * 4)
    assert len(run(made, plan_of(6, chunk))[0].tokens) == 5


def test_a_continuation_of_a_beam_search_says_nothing_of_what_was_read(root: Path):
    """Its row was that of a text that was read."""
    made, reader = with_reader(root)
    table = tuple(range(8))
    run(made, plan_of(1, Chunk(row=0, start=0, num_tokens=40, samples=True), PROMPT, table, drafter_follows=True))
    others, theirs = tuple(range(60, 100)), tuple(range(10, 18))
    plan = plan_of(2, Chunk(row=1, start=0, num_tokens=40, samples=True), others, theirs)
    searched = SamplingConfig(temperature=0.0, max_tokens=50, logprobs=4)
    join = msgspec.structs.replace(plan.joins[0], beams=True, sampling=searched)
    run(made, msgspec.structs.replace(plan, joins=(join,)))
    fork = Fork(row=0, source=1, position=40, tokens=(7,), kept_blocks=8)
    for step in (3, 4):
        forks = (fork,) if step == 3 else ()
        run(made, plan_of(step, Chunk(row=0, start=37 + step, num_tokens=1, samples=True), forks=forks))
    del reader.passes[:]
    shared = Chunk(row=2, start=32, num_tokens=8, samples=True)
    run(made, plan_of(5, shared, others, (*theirs[:4], 20, 21), computed=32, drafter_follows=True))
    assert reader.passes == [40], "none of its blocks was read"


def test_only_a_model_that_sees_whole_texts_can_be_drafted_for():
    facts = EngineFacts(
        device="cpu", kernels="", dtype="float32", block_size=16, num_blocks=8, max_model_len=64, max_sequences=1,
        max_batch_tokens=16, weights_bytes=0, kv_bytes_per_token=1,
    )  # fmt: skip
    window = LayerAttention("window", 8)
    assert whole_group(msgspec.structs.replace(facts, attentions=(window, LayerAttention()))) == 1
    with pytest.raises(ValueError, match="a part of the text"):
        whole_group(msgspec.structs.replace(facts, attentions=(window,)))
