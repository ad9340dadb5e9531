"""A draft model of another vocabulary changes no answer, reads each text once, and drafts as the request draws."""

import math
import random
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tokenizers import Tokenizer, models

from fakes import checkpoints
from fakes.by_hand import runner_of, scheduler_of, use_draft_model
from fakes.checkpoints import SPECIAL_TOKENS, Shape
from fakes.draft_plans import Reader, plan_of, run
from fakes.drafter import DraftCounts
from fakes.mixtures import WISHES, request, served, told
from kvasir_api.state import RequestTotals, RuntimeState
from kvasir_runtime.core.plan import UNDRAFTED, Chunk
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.speculation.drafters import ModelDrafter
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.vocabulary_pair import TextVocabulary, VocabularyPair
from kvasir_runtime.tokenizer_files import build
from kvasir_runtime.wire import BeamSearchConfig, EngineRequest, SamplingConfig

pytestmark = pytest.mark.skipif(library() is None, reason="this installation has no C++ kernels")

NUM_TOKENS = 128
SIZE = 320
FEW = (0, 2, 6)
"""Wishes that are enough where others have them all: greedy, filtered, penalties."""
SHAPE = Shape()
SMALL = Shape(family="qwen3", num_layers=1, hidden_size=32, num_heads=2, seed=21)
NEWS = {number: 3 + (7 * number) % (SIZE - 3) for number in range(3, SIZE)} | {0: 0, 1: 1, 2: 2}
"""Ids of the model in the vocabulary of the draft model that is the same model."""


def use_characters(folder: Path, ids: dict[int, int]) -> None:
    """Each token but the special ones is a character: any ids are a text, which has no other ids."""
    names = {ids[number]: chr(0x4E00 + number) for number in range(3, SIZE)} | dict(enumerate(SPECIAL_TOKENS))
    encoder = Tokenizer(models.BPE(vocab={name: number for number, name in names.items()}, merges=[]))
    encoder.add_special_tokens(list(SPECIAL_TOKENS))
    encoder.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model; the same with its ids changed, and with other weights besides; others, of tokens that are bytes."""
    root = tmp_path_factory.mktemp("models")
    use_characters(checkpoints.write(root / "model", SHAPE), {number: number for number in range(SIZE)})
    weights = checkpoints.random_weights(SHAPE)
    moved = torch.tensor([NEWS[number] for number in range(SIZE)])
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        placed = torch.empty_like(weights[name])
        placed[moved] = weights[name]
        weights[name] = placed
    noise = torch.Generator().manual_seed(9)
    near = {name: value + 0.01 * torch.randn(value.shape, generator=noise) for name, value in weights.items()}
    for name, of_name in (("itself", weights), ("near", near)):
        checkpoints.write_weights(checkpoints.write(root / name, SHAPE), of_name)
        use_characters(root / name, NEWS)
    checkpoints.write(root / "bytes", SMALL)
    checkpoints.write(root / "words", SHAPE)
    checkpoints.write(root / "few", Shape(vocab_size=290, num_layers=1, seed=5))
    return root


def pair_of(model: Path, drafter: Path) -> VocabularyPair:
    sizes = {"few": 290}
    return VocabularyPair(
        *[TextVocabulary.of(build.encoder(folder), sizes.get(folder.name, SIZE)) for folder in (model, drafter)]
    )


def runner(folder: Path, num_blocks: int = 1024) -> ModelRunner:
    return runner_of(folder, num_blocks=num_blocks, max_sequences=12, ops=cpu_ops(batch_invariant=True))


def with_drafter(root: Path, model: str, drafter: str, num_blocks: int = 1024, **more: Any) -> ModelRunner:
    made, pair = runner(root / model, num_blocks), pair_of(root / model, root / drafter)
    use_draft_model(made, root / drafter, ops=cpu_ops(batch_invariant=True), pair=pair, **more)
    return made


def drafting(made: ModelRunner, budget: int = 64) -> Scheduler:
    """One that has drafts in each step that decodes."""
    return scheduler_of(made, budget=budget, speculation="suffix", drafter=ModelDrafter())


def totals(scheduler: Scheduler) -> RequestTotals:
    return scheduler.report(RuntimeState()).totals


def requests(model: str) -> list[EngineRequest]:
    some = range(len(WISHES)) if model == "model" else FEW
    made = [request(number, **{**WISHES[number], "max_tokens": NUM_TOKENS}) for number in some]
    beam = BeamSearchConfig(width=2, answers=("60", "60b"), early_stopping=False)
    return [*made, request(60, beam=beam, max_tokens=9)]


@pytest.fixture(scope="module")
def plain(root: Path):
    return cache(lambda name: heard(served(runner(root / name), requests(name), depth=1, budget=64)))


def heard(story: Any) -> dict[str, Any]:
    return {name: told(events) for name, events in story.items()}


@pytest.mark.parametrize(("model", "drafter"), [("model", "itself"), ("words", "bytes"), ("words", "few")])
def test_answers_are_those_without_drafts(root: Path, plain, model: str, drafter: str) -> None:
    """Greedy ones, and those that are drawn, filtered, penalized or forced to go on."""
    made = with_drafter(root, model, drafter)
    scheduler = drafting(made)
    assert heard(served(made, requests(model), depth=1, scheduler=scheduler)) == plain(model)
    if drafter == "itself":  # but for what it drafts behind an end, of which the texts differ
        assert totals(scheduler).accepted_tokens > 0.95 * totals(scheduler).drafted_tokens
        assert totals(scheduler).drafted_tokens > 2 * NUM_TOKENS
    else:  # most texts of a model of random numbers end within a character
        assert totals(scheduler).drafted_tokens > 50


def test_drafts_of_texts_beside_those_of_the_model_change_no_answer(root: Path, plain) -> None:
    made = with_drafter(root, "model", "near")
    scheduler = scheduler_of(made, budget=64, speculation="model")
    counts = DraftCounts(scheduler)
    assert heard(served(made, requests("model"), depth=1, scheduler=scheduler)) == plain("model")
    assert counts.of_texts > NUM_TOKENS / 4
    assert counts.of_model > NUM_TOKENS / 2


@pytest.mark.parametrize("wishes", [{}, {"temperature": 1.0, "seed": 3}, {"frequency_penalty": 1.0}])
def test_each_way_to_draft_is_right_where_the_models_agree(root: Path, wishes: dict[str, Any]) -> None:
    made = with_drafter(root, "model", "itself")
    scheduler = drafting(made)
    served(made, [request(3, **{**wishes, "max_tokens": NUM_TOKENS})], depth=1, scheduler=scheduler)
    assert totals(scheduler).accepted_tokens > 0.95 * totals(scheduler).drafted_tokens
    assert totals(scheduler).accepted_tokens > 0.8 * NUM_TOKENS


def test_requests_that_lose_their_blocks_go_on_as_they_were(root: Path, plain) -> None:
    """The cache holds a few of them, so that blocks change hands all the time."""
    made = with_drafter(root, "model", "itself", num_blocks=36)
    scheduler = drafting(made, budget=20)
    assert heard(served(made, requests("model"), depth=1, scheduler=scheduler)) == plain("model")
    assert totals(scheduler).preemptions > 0
    assert totals(scheduler).accepted_tokens > NUM_TOKENS


def test_a_text_that_the_model_cannot_read_to_its_end_has_wrong_drafts(root: Path, plain) -> None:
    made = with_drafter(root, "model", "itself", longest=100)
    scheduler = drafting(made)
    story = served(made, [asked := request(0, max_tokens=200)], depth=1, scheduler=scheduler)
    assert heard(story) == heard(served(runner(root / "model"), [asked], depth=1))
    assert 0 < totals(scheduler).accepted_tokens <= 100


def draw(seed: int) -> EngineRequest:
    """With a prompt that is read at once."""
    sampling = SamplingConfig(temperature=0.7, top_k=12, max_tokens=3, ignore_eos=True, seed=seed)
    return EngineRequest(request_id=str(seed), prompt=(50, 60, 70, 80), sampling=sampling)


def test_draws_with_drafts_follow_the_distribution_without(root: Path) -> None:
    """Of each second token, by a chi-square test between draws with drafts and as many with other seeds without."""
    seeds, found = 1500, []
    for drafter, first in (("near", 0), (None, seeds)):
        made = with_drafter(root, "model", drafter) if drafter else runner(root / "model")
        scheduler = drafting(made) if drafter else scheduler_of(made, budget=64)
        answers = defaultdict[str, list[int]](list)
        for begin in range(first, first + seeds, 6):
            for seed in range(begin, begin + 6):
                assert scheduler.submit(draw(seed), 0.0) is None
            while (plan := scheduler.plan(0.0)) is not None:
                for event in scheduler.commit(made.collect(made.launch(plan)), 0.0):
                    answers[event.request_id] += event.token_ids
        found.append(Counter(tokens[1] for tokens in answers.values()))
        if drafter:
            assert totals(scheduler).drafted_tokens > 0.9 * seeds
            assert 0.1 * seeds < totals(scheduler).accepted_tokens < 0.9 * seeds
    with_drafts, without = found
    often = [token for token in with_drafts | without if with_drafts[token] + without[token] >= 20]
    statistic = sum((with_drafts[one] - without[one]) ** 2 / (with_drafts[one] + without[one]) for one in often)
    freedom = len(often) - 1
    assert freedom >= 3
    assert statistic < freedom + 4 * math.sqrt(2 * freedom)


def with_reader(root: Path, num_blocks: int = 1024, **more: Any) -> tuple[ModelRunner, Reader]:
    made, pair = runner(root / "model", num_blocks), pair_of(root / "model", root / "itself")
    ops = cpu_ops(batch_invariant=True)
    return made, use_draft_model(made, root / "itself", ops=ops, wrap=Reader, pair=pair, **more)


PROMPT = tuple(random.Random(1).choices(range(20, 300), k=200))
TABLE = tuple(range(40))


def test_a_prompt_is_read_with_its_step_and_not_again(root: Path) -> None:
    made, reader = with_reader(root)
    run(made, plan_of(1, Chunk(row=0, start=0, num_tokens=200, samples=True), PROMPT, TABLE, drafter_follows=True))
    assert reader.passes == [200]
    drafted = Chunk(row=0, start=200, num_tokens=4, samples=True, drafts=(UNDRAFTED,) * 3)
    (sampled,) = run(made, plan_of(2, drafted))
    assert (len(sampled.tokens), sampled.undrafted) == (4, 0)
    assert reader.passes == [200, 1, 1, 1]
    run(made, plan_of(3, msgspec.structs.replace(drafted, start=204)))  # nothing has read the last draft
    assert reader.passes[4:] == [2, 1, 1]


def test_streams_do_not_wait_until_a_long_prompt_is_read(root: Path) -> None:
    """Of so many tokens as the step computes, and 64."""
    made, reader = with_reader(root)
    run(made, plan_of(1, Chunk(row=0, start=0, num_tokens=200, samples=True), PROMPT, TABLE))
    undrafted = []
    for step in range(4):
        chunk = Chunk(row=0, start=200 + step, num_tokens=3, samples=True, drafts=(UNDRAFTED,) * 2)
        (sampled,) = run(made, plan_of(2 + step, chunk))
        undrafted.append(sampled.undrafted)
    assert undrafted == [2, 2, 2, 0]
    assert reader.passes == [67, 67, 67, 3, 1]


@pytest.mark.parametrize("more", [{"longest": 100}, {"num_blocks": 24}], ids=["too long", "no room"])
def test_for_a_text_that_cannot_be_read_one_wrong_draft_lets_the_sequence_rest(
    root: Path, more: dict[str, Any]
) -> None:
    """The blocks of the cache are for one such text."""
    made, reader = with_reader(root, **more)
    prompt, table = PROMPT[:180], TABLE[:23]
    follows = "num_blocks" in more
    run(made, plan_of(1, Chunk(row=0, start=0, num_tokens=180, samples=True), prompt, table, drafter_follows=follows))
    del reader.passes[:]
    run(made, plan_of(2, Chunk(row=1, start=0, num_tokens=180, samples=True), prompt, table))
    drafted = Chunk(row=1, start=180, num_tokens=3, samples=True, drafts=(UNDRAFTED,) * 2)
    (sampled,) = run(made, plan_of(3, drafted))
    assert (len(sampled.tokens), sampled.undrafted) == (1, 1)
    assert reader.passes == []


def test_what_the_model_shares_is_read_once_and_nothing_else_is_shared(root: Path) -> None:
    made, reader = with_reader(root)
    run(made, plan_of(1, Chunk(row=0, start=0, num_tokens=200, samples=True), PROMPT, TABLE, drafter_follows=True))
    del reader.passes[:]
    shared = Chunk(row=1, start=192, num_tokens=8, samples=True)
    run(made, plan_of(2, shared, PROMPT, (*TABLE[:24], 50, 51), computed=192, drafter_follows=True))
    assert 0 < reader.passes[0] <= 80, "what may become other tokens, and a block"
    # Of another tenant, with whom the model shares nothing.
    alone = Chunk(row=2, start=0, num_tokens=200, samples=True)
    run(made, plan_of(3, alone, PROMPT, tuple(range(60, 100)), drafter_follows=True))
    assert reader.passes[1:] == [200]
    # Each draws the same drafts, which are right.
    for row in (0, 1, 2):
        chunk = Chunk(row=row, start=200, num_tokens=4, samples=True, drafts=(UNDRAFTED,) * 3)
        assert len(run(made, plan_of(4 + row, chunk))[0].tokens) == 4


def test_streams_do_not_wait_until_a_long_prompt_is_encoded(root: Path) -> None:
    """Of three bytes a token. What was found of it in the cache is looked for before anything is read."""
    long, table = PROMPT * 20, tuple(range(501))
    made, reader = with_reader(root)
    run(made, plan_of(1, Chunk(row=0, start=0, num_tokens=4000, samples=True), long, table, drafter_follows=True))
    assert reader.passes == [4000]
    del reader.passes[:]
    other = (*table[:499], 502, 503)
    run(made, plan_of(2, Chunk(row=1, start=3992, num_tokens=8, samples=True), long, other, computed=3992))
    undrafted = []
    for step in range(4):
        chunk = Chunk(row=1, start=4000 + step, num_tokens=3, samples=True, drafts=(UNDRAFTED,) * 2)
        (sampled,) = run(made, plan_of(3 + step, chunk))
        undrafted.append(sampled.undrafted)
    assert undrafted == [2, 2, 2, 0]
    assert all(count <= 80 for count in reader.passes)


def test_a_row_that_leaves_gives_its_blocks_back(root: Path) -> None:
    """Many texts in turn, of which the cache holds few."""
    made, _ = with_reader(root)
    for step in range(30):
        chance = random.Random(step)
        prompt = tuple(chance.choices(range(20, 300), k=400))
        chunk = Chunk(row=step % 3, start=0, num_tokens=400, samples=True)
        leaves = (step % 3,) if step % 2 else ()
        run(made, plan_of(1 + step, chunk, prompt, tuple(range(60)), leaves=leaves, drafter_follows=True))
    chunk = Chunk(row=29 % 3, start=400, num_tokens=3, samples=True, drafts=(UNDRAFTED,) * 2)
    assert run(made, plan_of(40, chunk))[0].undrafted == 0
