"""Drafts of answers that follow a grammar: masks behind drafts, forced tokens among them, and the same answers."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fakes import checkpoints, grammars
from fakes.by_hand import runner_of, scheduler_of, use_draft_model
from fakes.checkpoints import EOS_TOKEN_ID, Shape
from fakes.drafter import RecordedDrafter
from fakes.grammars import of_schema
from fakes.mixtures import Story, request, served, told
from kvasir_api.state import RequestTotals, RuntimeState
from kvasir_runtime.core.plan import Chunk, SampledTokens
from kvasir_runtime.core.speculation.drafters import Draft, ModelDrafter, TokenHistory
from kvasir_runtime.guide import validate, vocabulary
from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.guide.drafted_masks import drafted_masks
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.runner.drafts import verified
from kvasir_runtime.wire import EngineRequest, Grammar, SamplingConfig

pytestmark = pytest.mark.skipif(library() is None, reason="this installation has no C++ kernels")

WAYS = {"dense": torch.float32, "whole-step": torch.bfloat16, "state": torch.float32}
"""Operation by operation, as one call of C++, and with states that are taken back behind a wrong draft."""
SHAPES = {
    "plain": Shape(std=0.3, max_position_embeddings=1024),
    "state": Shape(family="qwen3_next", num_layers=4, std=0.3, max_position_embeddings=1024),
}
ENTRY = {
    "x-guidance": {"whitespace_flexible": False},
    "type": "object",
    "properties": {
        "service": {"enum": ["operator", "gateway", "engine"]},
        "replicas": {"type": "integer", "minimum": 1, "maximum": 9},
        "name": {"type": "string", "maxLength": 12},
    },
    "required": ["service", "replicas", "name"],
    "additionalProperties": False,
}
ENTRIES = of_schema({"type": "array", "items": ENTRY, "minItems": 8, "maxItems": 8, "x-guidance": ENTRY["x-guidance"]})
WISHES = (
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.9, "seed": 5, "top_k": 20, "top_p": 0.9, "logprobs": 1},
    {"frequency_penalty": 1.0, "repetition_penalty": 1.3},
    {"temperature": 1.0, "seed": 8, "min_tokens": 40, "ignore_eos": False},
    {"bad_words": ((40, 41), (9,)), "logit_bias": ((60, 5.0),), "logprobs": 0},
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for name, shape in SHAPES.items():
        checkpoints.write(root / name, shape)
    return root


@pytest.fixture(scope="module")
def folder(folders: Path) -> Path:
    return folders / "plain"


@pytest.fixture(scope="module")
def words(folder: Path):
    return vocabulary.load(folder, 320, (EOS_TOKEN_ID,))


def guided(number: int, grammar: Grammar, words, **wishes: object) -> EngineRequest:
    """As the API process sends it."""
    found = validate.verdict(grammar, words)
    assert not found.error
    return request(number, **{"max_tokens": 300, **wishes, "grammar": found.grammar})


def answers(
    folder: Path,
    words,
    way: str,
    requests: Sequence[EngineRequest],
    *,
    drafter=None,
    name: str = "recorded",
    num_blocks: int = 1024,
    budget: int = 64,
    model: Path | None = None,
) -> tuple[Story, RequestTotals]:
    """drafter: None for no drafts, unless the name is of one. model: that drafts."""
    compiler = GrammarCompiler(lambda: words, (EOS_TOKEN_ID,))
    ops, dtype = cpu_ops(batch_invariant=True), WAYS[way]
    folder = folder.parent / "state" if way == "state" else folder
    made = runner_of(folder, num_blocks=num_blocks, max_sequences=8, ops=ops, dtype=dtype, grammars=compiler)
    if model is not None:
        use_draft_model(made, model, ops=ops, dtype=dtype)
    scheduler = scheduler_of(made, budget=budget, speculation=name, drafter=drafter)
    story = served(made, list(requests), depth=1, scheduler=scheduler)
    return story, scheduler.report(RuntimeState()).totals


def heard(story: Story) -> dict[str, tuple[object, ...]]:
    """All that clients hear but which of equally likely tokens are reported."""
    return {name: told(events)[:4] for name, events in story.items()}


def texts(requests: Sequence[EngineRequest], story: Story) -> list[list[int]]:
    ids = {name: [token for event in events for token in event.token_ids] for name, events in story.items()}
    return [[*one.prompt, *ids[one.request_id]] for one in requests]


@pytest.fixture(scope="module")
def long(words) -> list[EngineRequest]:
    """Answers of some 300 tokens, of which the grammar forces many, and one beside that is not guided."""
    entries = [guided(number, ENTRIES, words, **wishes) for number, wishes in enumerate(WISHES)]
    return [*entries, request(70, max_tokens=280)]


@pytest.fixture(scope="module")
def plain(folder: Path, words, long):
    return cache(lambda way: answers(folder, words, way, long, name="off")[0])


@pytest.mark.parametrize("way", WAYS)
def test_drafts_of_which_some_are_wrong_change_no_long_answer(folder: Path, words, long, plain, way: str):
    want = plain(way)
    assert min(len(told(events)[0]) for events in want.values()) > 250
    story, totals = answers(folder, words, way, long, drafter=RecordedDrafter(texts(long, want)))
    assert heard(story) == heard(want)
    assert totals.drafted_tokens > 500
    # Of a busy machine some masks behind drafts are late.
    assert 100 < totals.accepted_tokens < 0.8 * totals.drafted_tokens


@pytest.mark.parametrize("name", ["ngram", "suffix"])
def test_drafts_from_the_text_change_no_long_answer(folder: Path, words, long, plain, name: str):
    """Names of fields come again in each entry."""
    story, totals = answers(folder, words, "whole-step", long, name=name)
    assert heard(story) == heard(plain("whole-step"))
    assert totals.accepted_tokens > 50


@pytest.mark.parametrize("way", ["dense", "whole-step"])
def test_drafts_of_a_model_change_no_long_answer(folder: Path, words, long, plain, way: str):
    """The model drafts for itself, and knows no grammar; what is forced it reads with the next drafts."""
    story, totals = answers(folder, words, way, long, drafter=ModelDrafter(), model=folder)
    assert heard(story) == heard(plain(way))
    assert totals.drafted_tokens > 500
    assert 8 < totals.accepted_tokens < totals.drafted_tokens


@pytest.mark.parametrize(
    ("way", "temperature"),
    [
        *[("dense", 0.0), ("dense", 1.0), ("whole-step", 0.0), ("whole-step", 1.0), ("state", 1.0)],
        pytest.param("state", 0.0, marks=pytest.mark.long),
    ],
)
def test_drafts_change_no_answer_of_any_grammar(folder: Path, words, way: str, temperature: float):
    made = grammars.all_of_them().values()
    asked = [
        guided(number, grammar, words, temperature=temperature, seed=number, max_tokens=90)
        for number, (grammar, _) in enumerate(made)
    ]
    want, _ = answers(folder, words, way, asked, name="off")
    story, totals = answers(folder, words, way, asked, drafter=RecordedDrafter(texts(asked, want)))
    assert heard(story) == heard(want)
    assert totals.accepted_tokens > 30


class Stubborn:
    """Drafts the same ids behind any text."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = tuple(ids)

    def propose(self, history: TokenHistory, most: int) -> Draft:
        tokens = self._ids[:most]
        return Draft(tokens, (1.0,) * len(tokens), 4)


def test_drafts_that_no_grammar_allows_change_no_answer(folder: Path, words, long, plain):
    """End of sequence, ids that spell nothing here, and ids of no token."""
    for ids in ((EOS_TOKEN_ID, 5, 6), (2, 1, 0), (319, 318, 7)):
        story, totals = answers(folder, words, "whole-step", long, drafter=Stubborn(ids))
        assert heard(story) == heard(plain("whole-step"))
        assert totals.accepted_tokens < totals.drafted_tokens / 10


def test_answers_that_lose_their_blocks_go_on_as_they_were(folder: Path, words, long, plain):
    """The cache holds two of them; with a budget of a few tokens drafts are cut."""
    want = plain("dense")
    drafter = RecordedDrafter(texts(long, want))
    story, totals = answers(folder, words, "dense", long, drafter=drafter, num_blocks=90, budget=20)
    assert heard(story) == heard(want)
    assert totals.preemptions > 0
    assert totals.accepted_tokens > 50


ENDS = {
    "the end of the grammar": (Grammar(kind="regex", text="[ab]{12}"), {}),
    "EOS where the grammar accepts": (Grammar(kind="regex", text="[ab]{6}[cd]*"), {"logit_bias": ((0, 30.0),)}),
    "min_tokens": (Grammar(kind="regex", text="[ab]*"), {"logit_bias": ((0, 100.0),), "min_tokens": 9}),
    "ignore_eos": (Grammar(kind="regex", text="[ab]{3,19}"), {"logit_bias": ((0, 100.0),), "ignore_eos": True}),
    "a stop id": (Grammar(kind="regex", text="[ab]{9}[cd]*"), {"logit_bias": ((2, 100.0),), "stop_token_ids": (2,)}),
    "a stop id that the grammar requires": (Grammar(kind="regex", text="[ab]{9}x[ab]{9}"), {"stop_token_ids": (91,)}),
    "max_tokens": (Grammar(kind="regex", text="[ab]{50}"), {"max_tokens": 17}),
}


def test_answers_with_drafts_end_where_they_end_without(folder: Path, words):
    stop = words.tokenizer.tokenize_str("x")[0]
    asked = [
        guided(
            10 * number + more,
            grammar,
            words,
            **{"ignore_eos": False, "temperature": 1.0, "seed": more}
            | {name: (stop,) if value == (91,) else value for name, value in wishes.items()},
        )
        for number, (grammar, wishes) in enumerate(ENDS.values())
        for more in range(4)
    ]
    want, _ = answers(folder, words, "whole-step", asked, name="off")
    assert {events[-1].finish_reason for events in want.values()} == {"stop", "length"}
    # What follows the end of an answer in the drafts is never part of it.
    recorded = [[*text, EOS_TOKEN_ID, 70, 71, 72] for text in texts(asked, want)]
    for wrong_every in (1 << 30, 5):
        drafter = RecordedDrafter(recorded, wrong_every)
        story, totals = answers(folder, words, "whole-step", asked, drafter=drafter)
        assert heard(story) == heard(want)
        assert totals.accepted_tokens > 10


def test_an_answer_that_is_checked_beside_its_grammar_has_no_drafts(folder: Path, words):
    schema = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "minItems": 3, "maxItems": 9}
    asked = [guided(0, of_schema(schema), words, max_tokens=60)]
    assert asked[0].sampling.grammar.check
    want, _ = answers(folder, words, "dense", asked, name="off")
    story, totals = answers(folder, words, "dense", asked, drafter=RecordedDrafter(texts(asked, want)))
    assert heard(story) == heard(want)
    assert totals.drafted_tokens == 0


def test_masks_behind_drafts_are_those_behind_the_same_tokens(words):
    """Along a walk; the matcher stays where it is, and behind a wrong draft nothing is known."""
    compiler = GrammarCompiler(lambda: words, (EOS_TOKEN_ID,))
    compiler.compile("a", ENTRIES)
    # Logprobs, so that no token is forced.
    sampling = SamplingConfig(grammar=ENTRIES, max_tokens=400, logprobs=0)
    matcher, chance = compiler.matcher(sampling, ()), np.random.default_rng(0)
    width = -(-compiler.vocab_size // 32)

    def mask_of(one) -> np.ndarray:
        mask = np.full((1, width), -1, dtype=np.int32)
        one.fill(mask)
        return mask

    walked, masks = [], []
    while not walked or not matcher.take(walked[-1], 0).ended:
        masks.append(mask_of(matcher))
        allowed = np.unpackbits(masks[-1].view(np.uint8)[0], bitorder="little").nonzero()[0]
        walked.append(int(chance.choice(allowed[allowed != EOS_TOKEN_ID])))
    assert len(walked) > 200
    for start in range(0, len(walked) - 12, 5):
        matcher = compiler.matcher(sampling, walked[:start])
        behind = drafted_masks(matcher, walked[start : start + 9])
        assert [mask_of(one).tolist() for one in behind] == [one.tolist() for one in masks[start + 1 : start + 10]]
        assert all(one.is_filled for one in behind)
        allowed = np.unpackbits(masks[start].view(np.uint8)[0], bitorder="little")
        wrong = drafted_masks(matcher, [int((allowed == 0).nonzero()[0][-1]), walked[start]])
        assert [(mask_of(one) == -1).all() for one in wrong] == [True, True]
        assert not any(one.is_filled for one in wrong)
        assert (mask_of(matcher) == masks[start]).all()


DRAFTED = Chunk(row=3, start=10, num_tokens=5, samples=True, drafts=(7, 8, 9, 6))


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({0: (7, 8), 2: (9,), 3: (6,), 4: (1,)}, ((7, 8, 9, 6, 1), 4)),
        ({0: (7, 8, 9, 6), 4: (1, 2)}, ((7, 8, 9, 6, 1, 2), 4)),
        ({0: (7, 8, 9, 6, 5)}, ((7, 8, 9, 6, 5), 4)),
        ({0: (7, 8, 5)}, ((7, 8, 5), 2)),
        ({0: (7, 5, 9)}, ((7, 5, 9), 1)),
        ({0: (1, 8, 9)}, ((1, 8, 9), 0)),
        ({0: (7,), 1: ()}, ((7,), 0)),
        ({0: (7,), 1: (8, 9), 3: ()}, ((7, 8, 9), 2)),
    ],
)
def test_forced_tokens_are_computed_as_far_as_they_were_drafted(given, want):
    """given: tokens of the places that are reached; the others would be counted."""
    sampled = [SampledTokens(3, given.get(place, (99,))) for place in range(5)]
    (found,) = verified([DRAFTED], sampled)
    assert (found.tokens, found.accepted) == want


def test_an_end_behind_a_draft_ends_the_answer():
    sampled = [SampledTokens(3, (7,)), SampledTokens(3, (), ended=True), *[SampledTokens(3, (99,))] * 3]
    (found,) = verified([DRAFTED], sampled)
    assert (found.tokens, found.ended) == ((7,), True)
    sampled[1] = SampledTokens(3, (8,), ended=True)
    (found,) = verified([DRAFTED], sampled)
    assert (found.tokens, found.ended) == ((7, 8), True)
