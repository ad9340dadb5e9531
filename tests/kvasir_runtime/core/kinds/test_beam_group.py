"""Beams under the scheduler: answers are those of a plain search, blocks are shared, everything is given back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.beams import searched
from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import Serving, request, serving
from kvasir_api.cache_groups import LayerAttention
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.kinds.factory import longest
from kvasir_runtime.core.plan import StepFailure
from kvasir_runtime.wire import BeamSearchConfig, Grammar, Logprobs

MODEL = FakeModel(table=(0, *range(1, 24)))
PROMPT = list(range(1, 12))


def beam(name: str, width: int, *, num_answers: int | None = None, **rest: object) -> BeamSearchConfig:
    names = tuple(f"{name}/{number}" for number in range(num_answers or width))
    return BeamSearchConfig(width=width, answers=names, **rest)  # type: ignore[arg-type]


def beams(served: Serving, name: str, prompt: list[int], width: int, **rest: object) -> list[str]:
    keep = {key: rest.pop(key) for key in ("length_penalty", "early_stopping", "num_answers") if key in rest}
    made = request(f"{name}/0", prompt, beam=beam(name, width, **keep), **rest)
    served.submit(made)
    return list(made.beam.answers)


def found(served: Serving, names: list[str]) -> list[tuple[list[int], str, float]]:
    answers = [served.answers[name] for name in names]
    return [(answer.tokens, answer.reason, answer.score) for answer in answers]


def engine(depth: int = 1, **limits: object) -> Serving:
    return serving(depth, FakeRunner(model=MODEL), **limits)


@pytest.mark.parametrize("width", [1, 2, 3, 8])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(
    "rest",
    [
        {},
        {"length_penalty": 0.0},
        {"length_penalty": 2.0, "early_stopping": True},
        {"length_penalty": -1.0},
        {"early_stopping": "never"},
        {"min_tokens": 3},
    ],
)
def test_the_answers_are_those_of_a_plain_search(width, depth, rest):
    served = engine(depth)
    names = beams(served, "a", PROMPT, width, max_tokens=9, **rest)
    served.finish()
    want = searched(MODEL, PROMPT, width=width, max_tokens=9, stops=frozenset({0}), **rest)
    assert [(t, r) for t, r, _ in found(served, names)] == [(t, r) for t, r, _ in want]
    assert [s for *_, s in found(served, names)] == pytest.approx([s for *_, s in want])
    assert served.scheduler.report(RuntimeState()).kv.pinned_tokens == 0


def test_fewer_answers_than_beams_are_the_best_of_them():
    served = engine()
    names = beams(served, "a", PROMPT, 5, num_answers=2, max_tokens=6)
    served.finish()
    want = searched(MODEL, PROMPT, width=5, max_tokens=6, stops=frozenset({0}))[:2]
    assert [tokens for tokens, *_ in found(served, names)] == [tokens for tokens, *_ in want]


def test_stop_ids_end_beams_and_ignore_eos_does_not():
    served = engine()
    plain = beams(served, "a", PROMPT, 3, max_tokens=8, ignore_eos=True)
    ended = beams(served, "b", PROMPT, 3, max_tokens=8, ignore_eos=True, stop_token_ids=(3, 7, 9))
    served.finish()
    for names, stops in ((plain, frozenset()), (ended, frozenset({3, 7, 9}))):
        want = searched(MODEL, PROMPT, width=3, max_tokens=8, stops=stops)
        assert [(t, r) for t, r, _ in found(served, names)] == [(t, r) for t, r, _ in want]
    assert any(reason == "stop" for _, reason, _ in found(served, ended))
    assert {served.answers[name].stop_token_id for name in plain} == {None}


def test_beams_share_the_blocks_of_their_prompt_and_copy_only_partly_filled_ones():
    served = engine(block_size=4, num_blocks=64)
    beams(served, "a", list(range(1, 19)), 4, max_tokens=3)  # four full blocks, and two tokens in a fifth
    pinned = []
    while served.step():
        pinned.append(served.scheduler.pool.num_pinned)
    assert pinned[0] == 5
    assert max(pinned) <= 4 + 4, "the four full ones once, and at most one for each beam"
    assert len(served.plans[1].copies) == 3, "one beam goes on in the block where the prompt ended"
    assert len({copy.source for copy in served.plans[1].copies}) == 1


def test_a_beam_that_fills_its_block_is_forked_without_a_copy():
    served = engine(block_size=4)
    beams(served, "a", [1, 2, 3, 4], 3, max_tokens=2)
    served.finish()
    assert [plan.copies for plan in served.plans] == [(), ()]
    assert [len(plan.forks) for plan in served.plans] == [0, 3]


def test_a_group_waits_for_all_its_rows_and_no_request_passes_it():
    served = engine(max_sequences=4)
    served.submit(*(request(f"r{n}", [n + 1], max_tokens=6, ignore_eos=True) for n in range(3)))
    served.step()
    names = beams(served, "a", PROMPT, 3, max_tokens=4)
    served.submit(request("late", [9], max_tokens=2))
    served.step()
    state = served.scheduler.report(RuntimeState())
    assert (state.running, state.waiting) == (3, 2)
    served.finish()
    order = [join.request_id for plan in served.plans for join in plan.joins]
    assert order.index("a/0") < order.index("late")
    want = searched(MODEL, PROMPT, width=3, max_tokens=4, stops=frozenset({0}))
    assert [tokens for tokens, *_ in found(served, names)] == [tokens for tokens, *_ in want]


def test_a_group_is_preempted_whole_and_goes_on_where_it_was():
    served = engine(num_blocks=11, block_size=2, max_sequences=6)
    served.submit(request("first", [5, 6, 7], max_tokens=16, ignore_eos=True))
    served.step()
    names = beams(served, "a", [1, 2, 3, 4], 3, max_tokens=6, ignore_eos=True)
    served.finish()
    joins = [join.request_id for plan in served.plans for join in plan.joins]
    assert joins.count("a/0") > 1
    assert joins.count("first") == 1
    want = searched(MODEL, [1, 2, 3, 4], width=3, max_tokens=6, stops=frozenset())
    assert [tokens for tokens, *_ in found(served, names)] == [tokens for tokens, *_ in want]
    assert served.scheduler.report(RuntimeState()).kv.pinned_tokens == 0


@pytest.mark.parametrize(
    ("width", "limits", "words"),
    [
        (9, {}, "9 beams are wanted, and 8 sequences can run here at a time"),
        (0, {}, "0 beams are wanted"),
        (4, {"max_batch_tokens": 3}, "3 sequences can run"),
        (8, {"num_blocks": 5, "block_size": 4}, "prompt and answer together may have 9 here"),
    ],
)
def test_beams_that_can_never_run_are_refused(width, limits, words):
    served = engine(**limits)
    beams(served, "a", PROMPT, width, num_answers=1)
    assert words in served.answers["a/0"].message
    assert not served.scheduler.has_work


@pytest.mark.parametrize("steps", range(8))
@pytest.mark.parametrize("depth", [1, 2])
def test_an_abort_at_any_step_gives_everything_back(steps, depth):
    served = engine(depth, max_batch_tokens=8, prefix_cache=False)
    beams(served, "a", PROMPT, 4, max_tokens=20, ignore_eos=True)
    for _ in range(steps):
        served.step()
    served.scheduler.abort("a/0", served.now)
    served.finish()
    kv = served.scheduler.report(RuntimeState()).kv
    assert (kv.pinned_tokens, kv.free_tokens) == (0, kv.capacity_tokens)
    assert served.submit(request("b", PROMPT)) is None
    served.finish()


def test_a_failed_step_ends_the_group_and_gives_everything_back():
    served = engine()
    beams(served, "a", PROMPT, 4, max_tokens=20, ignore_eos=True)
    for _ in range(4):
        served.step()
    served.flight.clear()
    events = served.scheduler.fail_running(StepFailure(message="broken"), served.now)
    assert [(event.request_id, event.finish_reason) for event in events] == [("a/0", "error")]
    assert served.scheduler.report(RuntimeState()).kv.pinned_tokens == 0
    assert not served.scheduler.has_work


def test_what_beams_computed_is_found_by_the_next_turn():
    served = engine(block_size=2)
    best, *_ = beams(served, "a", PROMPT, 3, max_tokens=6, ignore_eos=True)
    served.finish()
    answer = served.answers[best].tokens
    served.submit(request("next", [*PROMPT, *answer, 5, 6, 7]))
    served.finish()
    assert served.answers["next"].cached_tokens >= len(PROMPT) + len(answer) - 3


def test_the_same_searches_give_the_same_plans():
    def plans():
        served = engine(2, num_blocks=13, block_size=2)
        beams(served, "a", PROMPT, 3, max_tokens=5)
        beams(served, "b", [1, 2, 3], 2, max_tokens=8)
        served.submit(request("c", PROMPT))
        served.finish()
        return served.plans

    first = plans()
    assert sum(len(plan.forks) for plan in first) > 10
    assert first == plans()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("limits", [{}, {"max_batch_tokens": 5}, {"num_blocks": 18, "block_size": 2}])
def test_masks_that_are_late_delay_a_search_and_do_not_change_it(depth, limits):
    runner = FakeRunner(model=MODEL, late_every=2)
    served = serving(depth, runner, **limits)
    guided = beams(served, "a", PROMPT, 3, max_tokens=7, grammar=Grammar(kind="json_object"))
    plain = beams(served, "b", PROMPT[:4], 3, max_tokens=5)
    served.finish()
    assert len(runner.late) > 1
    for names, prompt, most in ((guided, PROMPT, 7), (plain, PROMPT[:4], 5)):
        want = searched(MODEL, prompt, width=3, max_tokens=most, stops=frozenset({0}))
        assert [(t, r) for t, r, _ in found(served, names)] == [(t, r) for t, r, _ in want]
    assert served.scheduler.report(RuntimeState()).kv.pinned_tokens == 0


def test_answers_that_a_grammar_does_not_have_are_reported_as_missing():
    """Three tokens may follow at first, and only the end after each."""

    class ThreeAnswers(FakeModel):
        def likeliest(self, context, count):
            allowed = (3, 5, 7) if len(context) == len(PROMPT) else (0,)
            top = [(logprob, token) for logprob, token in self.logprobs(context) if token in allowed]
            return Logprobs(-1.0, 1, tuple(token for _, token in top), tuple(logprob for logprob, _ in top))

    served = serving(1, FakeRunner(model=ThreeAnswers(table=MODEL.table)))
    names = beams(served, "a", PROMPT, 5, max_tokens=6, min_tokens=4, grammar=Grammar(kind="json_object"))
    served.finish()
    answers = found(served, names)
    assert sorted(tokens for tokens, *_ in answers[:3]) == [[3], [5], [7]]
    assert [score for *_, score in answers[3:]] == [float("-inf")] * 2
    assert {reason for _, reason, _ in answers} == {"stop"}


def test_beams_that_were_preempted_read_the_state_that_they_have_copied():
    """They begin again with what all have in common, in one block, and what follows goes beyond that block."""
    state = (LayerAttention("state"),)
    limits = {"num_blocks": 4, "block_size": 4, "max_batch_tokens": 8, "max_sequences": 3, "prefix_cache": False}
    runner = FakeRunner(model=MODEL, attentions=state, max_model_len=26)
    served = serving(3, runner, attentions=state, **limits)
    first = beams(served, "a", [1, 2], 1, max_tokens=5)
    second = beams(served, "b", [1, 2], 2, max_tokens=4)
    served.finish()
    assert served.scheduler.report(RuntimeState()).totals.preemptions > 0
    for names, most in ((first, 5), (second, 4)):
        want = searched(MODEL, [1, 2], width=len(names), max_tokens=most, stops=frozenset({0}))
        assert [(t, r) for t, r, _ in found(served, names)] == [(t, r) for t, r, _ in want]


TRAFFIC = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 5), st.integers(1, 14), st.integers(1, 8), st.integers(0, 2)),
    min_size=1,
    max_size=6,
)
LIMITS = st.fixed_dictionaries(
    {
        "num_blocks": st.integers(6, 20),
        "block_size": st.sampled_from([1, 2, 4]),
        "max_batch_tokens": st.integers(4, 24),
        "max_sequences": st.integers(4, 7),
        "max_model_len": st.integers(12, 40),
        "prefix_cache": st.booleans(),
    }
)


@given(limits=LIMITS, traffic=TRAFFIC, depth=st.integers(1, 3), abort=st.integers(0, 20))
@settings(max_examples=150, deadline=None)
def test_any_traffic_of_beams_and_others_is_answered_as_if_alone(limits, traffic, depth, abort):
    served = engine(depth, **limits)
    groups = {}
    for number, (steps, width, length, max_tokens, salt) in enumerate(traffic):
        for _ in range(steps):
            served.step()
        prompt = [*range(1, length + 1), salt + 1]
        if width:
            groups[f"g{number}"] = (beams(served, f"g{number}", prompt, width, max_tokens=max_tokens), prompt, width)
        else:
            served.submit(request(f"r{number}", prompt, max_tokens=max_tokens))
    for _ in range(abort):
        served.step()
    gone = next(iter(groups)) if abort % 3 == 0 and groups else ""
    if gone:
        served.scheduler.abort(f"{gone}/0", served.now)
    served.finish()
    kv = served.scheduler.report(RuntimeState()).kv
    assert kv.pinned_tokens == 0
    assert kv.cached_tokens + kv.free_tokens == kv.capacity_tokens
    for name, (names, prompt, width) in groups.items():
        answer = served.answers[names[0]]
        if answer.reason == "error":
            assert "may have" in answer.message or "can run here" in answer.message
            continue
        if name == gone and not answer.reason:
            continue
        most = traffic[int(name[1:])][3]
        room = longest(request("x", prompt, beam=beam("x", width)), served.scheduler.limits) - len(prompt)
        want = searched(MODEL, prompt, width=width, max_tokens=min(most, room), stops=frozenset({0}))
        assert [(t, r) for t, r, _ in found(served, names)] == [(t, r) for t, r, _ in want]
