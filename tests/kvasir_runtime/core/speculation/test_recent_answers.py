"""Answers of a tenant serve its own later requests as texts to draft from, no other's, and are forgotten with it."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import Serving, request, serving
from kvasir_api.hashes import block_root, owner_of_salt
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.speculation.drafters import LONGEST_END, NO_DRAFT, Draft
from kvasir_runtime.core.speculation.recent_answers import (
    MAX_ANSWER_TOKENS,
    MAX_TOKENS,
    MAX_TOKENS_OF_ALL,
    TENANT_TOKENS,
    RecentAnswers,
    TenantAnswers,
)
from kvasir_runtime.wire import BeamSearchConfig


def kept(*answers, most=64):
    made = TenantAnswers()
    for answer in answers:
        made.add(answer, most)
    return made


def ids(*tokens):
    return np.array(tokens, dtype=np.int32)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ((1, 2), Draft((3, 4), (1.0, 0.5), 2)),  # both went on with 3, the last of them with 4
        ((7, 1, 2), Draft((3, 5), (1.0, 1.0), 3)),
        ((9, 9), NO_DRAFT),
        ((2,), NO_DRAFT),
        ((6, 8), NO_DRAFT),  # of two answers
        ((3, 4), NO_DRAFT),  # nothing came behind
    ],
)
def test_what_followed_in_recent_answers_is_drafted(text, want):
    assert kept([7, 1, 2, 3, 5, 6], [8, 1, 2, 3, 4]).longer(NO_DRAFT, ids(*text), 2) == want


def test_an_answer_wins_over_the_text_where_more_of_the_end_occurred_there():
    answers = kept([5, 1, 2, 3, 4])
    own = Draft((8,), (1.0,), 2)
    assert answers.longer(own, ids(5, 1, 2), 9).tokens == (3, 4)
    assert answers.longer(own, ids(6, 1, 2), 9) is own
    assert answers.longer(Draft((8,), (1.0,), LONGEST_END), ids(5, 1, 2), 9).tokens == (8,)


def naive(answers, text, most):
    """The same by plain comparisons: END is -1."""
    for matched in range(min(LONGEST_END, len(text)), 1, -1):
        rests = [
            [*answer[start + matched :], -1]
            for answer in answers
            for start in range(len(answer) - matched + 1)
            if answer[start : start + matched] == text[-matched:]
        ]
        if rests:
            break
    else:
        return NO_DRAFT
    tokens, total = [], len(rests)
    while len(tokens) < most and rests:
        following = [rest[len(tokens)] for rest in rests]
        last = {one: place for place, one in enumerate(following)}
        token = max(last, key=lambda one: (following.count(one), last[one]))
        rests = [rest for rest in rests if rest[len(tokens)] == token]
        if token < 0 or len(rests) < 0.1 * total:
            break
        tokens.append(token)
    return Draft(tuple(tokens), (), matched) if tokens else NO_DRAFT


@given(
    answers=st.lists(st.lists(st.integers(0, 2), min_size=2, max_size=40), min_size=1, max_size=5),
    text=st.lists(st.integers(0, 2), min_size=1, max_size=40),
)
def test_the_search_finds_what_a_plain_one_does(answers, text):
    assert replace(kept(*answers).longer(NO_DRAFT, ids(*text), 6), shares=()) == naive(answers, text, 6)


def test_of_answers_only_the_last_are_kept():
    answers = kept([1, 2, 3], [1, 2, 4], [5, 6, 7], most=2)
    assert (answers.num_answers, answers.num_tokens) == (2, 8)
    assert answers.longer(NO_DRAFT, ids(1, 2), 3).tokens == (4,)
    assert answers.longer(NO_DRAFT, ids(5, 6), 3).tokens == (7,)


def test_as_many_tokens_of_a_tenant_are_kept_as_have_room():
    chance, answers = random.Random(1), TenantAnswers()
    for number in range(60):
        text = [*chance.choices(range(2_000), k=chance.randint(2, 8_000)), 5_000, 6_000 + number]
        answers.add(text, 1_000)
        assert answers.num_tokens <= MAX_TOKENS
        assert answers.longer(NO_DRAFT, ids(*text[-8:-3]), 3).tokens == tuple(text[-3:])
    assert answers.num_tokens > MAX_TOKENS - 8_003
    assert answers.longer(NO_DRAFT, ids(5_000, 6_000), 3) == NO_DRAFT
    answers.add([3] * 5 * MAX_ANSWER_TOKENS, 1_000)
    assert answers.longer(NO_DRAFT, ids(3, 3), 3).tokens == (3, 3, 3)
    assert answers.num_tokens <= MAX_TOKENS


def root(tenant: bytes) -> bytes:
    return block_root(salt=tenant * 32)


def test_a_tenant_with_many_salts_displaces_its_own_answers_only():
    recent = RecentAnswers(8)
    mine = recent.of("a", root(b"a"))
    recent.add(mine, [1, 2, 3])
    for number in range(2 * MAX_TOKENS_OF_ALL // TENANT_TOKENS):
        theirs = recent.of("b", block_root(salt=number.to_bytes(32)))
        recent.add(theirs, [4, 5, 6])
    assert recent.num_answers < MAX_TOKENS_OF_ALL // TENANT_TOKENS
    assert recent.num_tokens == 4 * recent.num_answers
    assert recent.of("a", root(b"a")) is mine
    assert mine.longer(NO_DRAFT, ids(1, 2), 3).tokens == (3,)
    assert theirs.longer(NO_DRAFT, ids(4, 5), 3).tokens == (6,)


def test_all_tenants_together_have_a_bound():
    recent, chance = RecentAnswers(1_000), random.Random(2)
    for number in range(80):
        answers = recent.of(str(number), root(bytes([number])))
        recent.add(answers, chance.choices(range(9), k=MAX_ANSWER_TOKENS))
        assert recent.num_tokens <= MAX_TOKENS_OF_ALL
    assert recent.num_tokens > MAX_TOKENS_OF_ALL // 2
    assert recent.num_answers * (MAX_ANSWER_TOKENS + 1) == recent.num_tokens


@pytest.mark.parametrize(("owner", "left"), [(b"", 0), (b"a", 1)])
def test_what_is_forgotten_is_gone_also_for_answers_that_had_begun(owner, left):
    recent = RecentAnswers(8)
    begun = recent.of("a", root(b"a"))
    recent.add(begun, [1, 2, 3])
    recent.add(recent.of("b", root(b"b")), [1, 2, 4])
    recent.forget(owner_of_salt(owner * 32) if owner else b"")
    recent.add(begun, [1, 2, 5])
    assert begun.longer(NO_DRAFT, ids(1, 2), 3) == NO_DRAFT
    assert recent.of("a", root(b"a")).longer(NO_DRAFT, ids(1, 2), 3) == NO_DRAFT
    assert recent.num_answers == left


PROMPT = list(range(100, 112))


def tenants(speculation: str = "suffix", **limits) -> Serving:
    """A model whose answer depends on the prompt, so that only another answer to the same one tells what follows."""
    runner = FakeRunner(model=FakeModel(table=tuple(range(1, 61))))
    return serving(runner=runner, speculation=speculation, **{"max_cached_answers": 4, **limits})


def accepted(served: Serving, name: str, *, prompt=PROMPT, **wishes) -> int:
    """Serve a request; drafts that were kept."""
    before = served.scheduler.report(RuntimeState()).totals.accepted_tokens
    served.submit(request(name, prompt, **{"max_tokens": 24, **wishes}))
    served.finish()
    return served.scheduler.report(RuntimeState()).totals.accepted_tokens - before


ALICE, BOB = {"tenant": "alice", "salt": b"a" * 32}, {"tenant": "bob", "salt": b"b" * 32}


def test_a_tenant_that_asks_again_has_drafts_and_no_other_one():
    served = tenants()
    assert accepted(served, "first", **ALICE) == 0
    assert accepted(served, "again", **ALICE) > 15
    assert served.answers["again"].tokens == served.answers["first"].tokens
    assert accepted(served, "of bob", **BOB) == 0
    assert accepted(served, "with a salt", tenant="alice", salt=b"a" * 8 + b"c" * 24) == 0
    assert accepted(served, "shared salt", tenant="bob", salt=b"a" * 32) == 0
    said = served.scheduler.report(RuntimeState()).speculation
    assert (said.cached_answers, said.cached_tokens) == (5, 5 * 33)


@pytest.mark.parametrize("limits", [{"max_cached_answers": 0}, {"speculation": "ngram"}])
def test_without_the_option_nothing_is_kept(limits):
    served = tenants(**limits)
    for name in ("first", "again"):
        assert accepted(served, name) == 0
    assert served.scheduler.report(RuntimeState()).speculation.cached_answers == 0


@pytest.mark.parametrize(("owner", "has_drafts"), [(b"a" * 8, False), (b"", False), (b"b" * 8, True)])
@pytest.mark.parametrize("while_it_runs", [False, True])
def test_no_draft_is_made_of_what_was_forgotten(owner, has_drafts, while_it_runs):
    served = tenants()
    served.submit(request("first", PROMPT, max_tokens=24, **ALICE))
    for _ in range(6 if while_it_runs else 99):
        served.step()
    served.scheduler.forget(owner)
    served.finish()
    assert (accepted(served, "again", **ALICE) > 0) == has_drafts


def test_an_answer_that_a_request_computes_again_after_a_preemption_counts_once():
    served = tenants(num_blocks=14, max_sequences=2)
    served.submit(*(request(name, [*PROMPT, place], max_tokens=24) for place, name in enumerate("ab")))
    served.finish()
    report = served.scheduler.report(RuntimeState())
    assert report.totals.preemptions > 0
    assert report.speculation.cached_answers == 2


def test_what_is_no_answer_is_not_kept():
    served = tenants()
    beam = BeamSearchConfig(width=2, answers=("s", "t"))
    served.submit(request("s", PROMPT, max_tokens=5, beam=beam))
    served.finish()
    served.submit(request("gone", PROMPT))
    served.scheduler.abort("gone", 0.0)
    assert served.scheduler.report(RuntimeState()).speculation.cached_answers == 0


def test_the_same_requests_give_the_same_plans():
    """So that a trace with forgotten tenants replays."""
    plans = []
    for _ in range(2):
        served = tenants()
        for number in range(9):
            accepted(served, str(number), prompt=PROMPT[number % 3 :], **(BOB if number % 2 else ALICE))
            if number == 4:
                served.scheduler.forget(b"b" * 8)
        plans.append(served.plans)
    assert plans[0] == plans[1]
    assert any(chunk.drafts for plan in plans[0] for chunk in plan.chunks)
