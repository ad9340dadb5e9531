"""Answers with drafts are those without, token by token: every family, every way to draft, every wish of a request."""

from functools import cache
from pathlib import Path

import pytest
import torch

from fakes import checkpoints
from fakes.by_hand import runner_of, scheduler_of, use_draft_model
from fakes.checkpoints import EOS_TOKEN_ID, Shape
from fakes.drafter import RecordedDrafter
from fakes.mixtures import WISHES, Story, request, served, told
from fakes.ranks import group_of
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.plan import Chunk, SampledTokens
from kvasir_runtime.core.speculation.drafters import Draft, ModelDrafter, TokenHistory
from kvasir_runtime.core.speculation.speculation import MAX_DRAFTS
from kvasir_runtime.guide import vocabulary
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.runner.drafts import sampled_positions, verified
from kvasir_runtime.wire import BeamSearchConfig, EngineRequest, Grammar

pytestmark = pytest.mark.skipif((found := library()) is None, reason="this installation has no C++ kernels")

WINDOW = {"sliding_window": 24}
FAMILIES = {
    "dense": Shape(),
    "mixture": Shape(family="mixtral", seed=8),
    "windows": Shape(
        family="qwen2", extra={"use_sliding_window": True, "max_window_layers": 1} | WINDOW, tied=True, seed=6
    ),
    "latent": Shape(family="deepseek_v2", std=0.2, seed=12),
    "state": Shape(family="qwen3_next", num_layers=4, std=0.2, seed=11),
    "whole-step": Shape(dtype=torch.bfloat16, intermediate_size=160, num_layers=3),
}
NUM_TOKENS = 128
FEW = (0, 2, 6)
"""Wishes that are enough for a family whose kernels other families have too: greedy, filtered, penalties."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def runner(root: Path, family: str, num_blocks: int = 1024):
    folder = root / family
    if not folder.exists():
        checkpoints.write(folder, FAMILIES[family])
    dtype = torch.bfloat16 if family == "whole-step" else torch.float32
    return runner_of(folder, num_blocks=num_blocks, max_sequences=12, ops=cpu_ops(batch_invariant=True), dtype=dtype)


def requests(family: str) -> list[EngineRequest]:
    """One with each wish, as long as the exactness is stated for."""
    some = range(len(WISHES)) if family in ("dense", "whole-step") else FEW[: 2 if family == "state" else 3]
    made = [request(number, **{**WISHES[number], "max_tokens": NUM_TOKENS}) for number in some]
    beam = BeamSearchConfig(width=2, answers=("60", "60b"), early_stopping=False)
    return [*made, request(60, beam=beam, max_tokens=9)]


def texts(family: str, story: Story) -> list[list[int]]:
    ids = {name: [token for event in events for token in event.token_ids] for name, events in story.items()}
    return [[*one.prompt, *ids[one.request_id]] for one in requests(family)]


def heard(family: str, story: Story) -> dict[str, tuple[object, ...]]:
    """All that clients hear; of logits of 16 bits some are equal, and which of them are reported has no order."""
    by_name = {name: told(events) for name, events in story.items()}
    return {name: one[:4] + one[5:] if family == "whole-step" else one for name, one in by_name.items()}


def with_drafts(root: Path, family: str, plain: Story, name: str, num_blocks: int = 1024, budget: int = 64):
    """The same requests, and how many drafts were verified and kept."""
    drafter = RecordedDrafter(texts(family, plain)) if name == "recorded" else None
    made = runner(root, family, num_blocks)
    scheduler = scheduler_of(made, budget=budget, speculation=name, drafter=drafter)
    story = served(made, requests(family), depth=1, scheduler=scheduler)
    return story, scheduler.report(RuntimeState()).totals


@pytest.fixture(scope="module")
def plain(root: Path):
    return cache(lambda family: served(runner(root, family), requests(family), depth=1, budget=64))


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_of_which_some_are_wrong_change_no_answer(root: Path, plain, family: str):
    want = plain(family)
    story, totals = with_drafts(root, family, want, "recorded")
    assert heard(family, story) == heard(family, want)
    assert totals.drafted_tokens > 2 * NUM_TOKENS
    assert 0.2 * totals.drafted_tokens < totals.accepted_tokens < 0.8 * totals.drafted_tokens


@pytest.mark.parametrize("name", ["ngram", "suffix"])
@pytest.mark.parametrize("family", ["dense", "whole-step"])
def test_drafts_from_the_text_change_no_answer(root: Path, plain, family: str, name: str):
    story, totals = with_drafts(root, family, plain(family), name)
    assert heard(family, story) == heard(family, plain(family))
    assert totals.accepted_tokens > NUM_TOKENS


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("family", ["dense", "whole-step"])
def test_the_longest_drafts_change_no_answer(root: Path, plain, family: str, number: int):
    """Greedy and sampled; of one sequence, whose every step drafts as much as `auto` may."""
    want, made, asked = plain(family), runner(root, family), requests(family)[number]
    drafter = RecordedDrafter(texts(family, want), wrong_every=40)
    scheduler = scheduler_of(made, budget=64, speculation="auto", drafter=drafter)
    scheduler._speculation._controller = None  # which goes by measured seconds
    story = served(made, [asked], depth=1, scheduler=scheduler)
    name = asked.request_id
    assert heard(family, story) == {name: heard(family, want)[name]}
    assert max(len(event.token_ids) for event in story[name]) == 1 + MAX_DRAFTS


@pytest.mark.parametrize("family", ["dense", "whole-step"])
def test_drafts_from_recent_answers_change_no_answer(root: Path, plain, family: str):
    """Greedy, sampled, with penalties: the same requests again, most of whose answers are drafted then."""
    want, made = plain(family), runner(root, family)
    scheduler = scheduler_of(made, budget=64, speculation="suffix", max_cached_answers=32)
    kept = []
    for _ in range(2):
        assert heard(family, served(made, requests(family), depth=1, scheduler=scheduler)) == heard(family, want)
        kept.append(scheduler.report(RuntimeState()).totals.accepted_tokens)
    assert kept[1] - kept[0] > kept[0] + NUM_TOKENS


def test_requests_that_lose_their_blocks_go_on_as_they_were(root: Path, plain):
    """The cache holds a few of them; with a budget of a few tokens drafts are cut."""
    want = plain("dense")
    story, totals = with_drafts(root, "dense", want, "recorded", num_blocks=64, budget=20)
    assert totals.preemptions > 0
    assert totals.accepted_tokens > NUM_TOKENS
    assert heard("dense", story) == heard("dense", want)


@pytest.mark.parametrize("stages", [1, 2])
def test_answers_of_grammars_beside_drafts_are_what_they_were(root: Path, stages: int):
    """A step samples several positions of one row and one, with a mask, of the other. stages: with drafts."""
    folder = checkpoints.write(root / "guided", Shape(std=0.3))
    words = vocabulary.load(folder, 320, (EOS_TOKEN_ID,))
    grammar = Grammar(kind="regex", text="[a-d]{90}")
    asked = [
        request(0, max_tokens=120),
        request(1, max_tokens=120, grammar=grammar, logprobs=1),
        request(2, max_tokens=120, temperature=1.0, seed=5, logprobs=1),
    ]
    stories, drafted = [], 0
    for name in ("off", "recorded"):
        sizes = {"max_sequences": 4, "grammars": GrammarCompiler(lambda: words, (EOS_TOKEN_ID,))}
        answered = [
            [*one.prompt, *(token for event in stories[0][one.request_id] for token in event.token_ids)]
            for one in asked
            if stories
        ]
        drafter, used = RecordedDrafter(answered) if stories else None, stages if stories else 1
        with group_of(used, stages=used) as group:
            own = group if used > 1 else ()
            made = runner_of(folder, ops=cpu_ops(), group=own, num_stages=used, **sizes)
            scheduler = scheduler_of(made, budget=64, speculation=name, drafter=drafter)
            stories.append(served(made, asked, depth=1, scheduler=scheduler))
        drafted = scheduler.report(RuntimeState()).totals.drafted_tokens
    assert drafted > 120
    assert heard("dense", stories[0]) == heard("dense", stories[1])


class Few(ModelDrafter):
    """Drafts so many that a test is quick."""

    def propose(self, history: TokenHistory, most: int) -> Draft:
        return super().propose(history, min(most, 2))


def test_a_draft_model_changes_no_answer_of_a_model_with_a_state(root: Path):
    """Most of its drafts are wrong; what is read again goes through its cache again."""
    runner(root, "dense")
    asked, made = [request(0, max_tokens=NUM_TOKENS)], runner(root, "state")
    want = served(runner(root, "state"), asked, depth=1, budget=64)
    use_draft_model(made, root / "dense", ops=cpu_ops(batch_invariant=True))
    scheduler = scheduler_of(made, budget=64, speculation="drafted", drafter=Few())
    assert heard("state", served(made, asked, depth=1, scheduler=scheduler)) == heard("state", want)
    totals = scheduler.report(RuntimeState()).totals
    assert totals.drafted_tokens > NUM_TOKENS / 2
    assert totals.accepted_tokens > 0


DRAFTED = Chunk(row=3, start=10, num_tokens=4, samples=True, min_tokens_left=2, drafts=(7, 8, 9))


def test_each_draft_is_a_position_that_is_sampled_from():
    assert [(chunk.num_tokens, chunk.min_tokens_left) for chunk in sampled_positions([DRAFTED])] == [
        (1, 2),
        (2, 1),
        (3, 0),
        (4, 0),
    ]


@pytest.mark.parametrize(
    ("drawn", "want"),
    [((7, 8, 9, 4), (7, 8, 9, 4)), ((7, 8, 1, 4), (7, 8, 1)), ((7, 1, 9, 4), (7, 1)), ((1, 8, 9, 4), (1,))],
)
def test_tokens_up_to_the_first_other_one_than_the_draft_count(drawn, want):
    sampled = [SampledTokens(3, (token,)) for token in drawn]
    assert verified([DRAFTED], sampled) == (SampledTokens(3, want, accepted=len(want) - 1),)


def test_output_that_is_not_finite_behind_a_draft_is_left_to_the_next_step():
    sampled = [SampledTokens(3, (7,)), SampledTokens(3, (), invalid=True), *[SampledTokens(3, (1,))] * 2]
    assert verified([DRAFTED], sampled) == (SampledTokens(3, (7,)),)
    sampled[0] = SampledTokens(3, (), invalid=True)
    assert verified([DRAFTED], sampled)[0].invalid
