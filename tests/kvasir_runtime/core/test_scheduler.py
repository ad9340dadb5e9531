"""The scheduling rule by cases: budget, order, chunks, prefix hits, preemption, ends, and two plans in flight."""

import msgspec
import pytest

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api import hashes
from kvasir_api.state import DecodeTotals, RuntimeState
from kvasir_runtime import wire
from kvasir_runtime.core.plan import Chunk, SampledTokens, StepFailure, StepPlan, StepResults

NO_EOS = FakeModel(table=tuple(range(1, 61)))


def chunks(plan):
    return [(chunk.row, chunk.start, chunk.num_tokens, chunk.samples) for chunk in plan.chunks]


def endless(**settings):
    """A served model that never says EOS."""
    return serving(runner=FakeRunner(model=NO_EOS), **settings)


def test_a_prompt_is_chunked_under_the_budget_and_then_decoded():
    served = endless(max_batch_tokens=8)
    served.submit(request("a", range(1, 20), max_tokens=3))
    served.finish()
    assert [chunks(plan) for plan in served.plans] == [
        [(0, 0, 8, False)],
        [(0, 8, 8, False)],
        [(0, 16, 3, True)],
        [(0, 19, 1, True)],
        [(0, 20, 1, True)],
    ]
    assert served.answers["a"].reason == "length"
    assert len(served.answers["a"].tokens) == 3


def test_running_sequences_go_first_and_prompts_take_what_is_left():
    served = endless(max_batch_tokens=8)
    served.submit(request("a", [1, 2, 3]))
    served.step()
    served.submit(request("b", range(1, 11)), request("c", [1]))
    served.step()
    served.step()
    assert chunks(served.plans[1]) == [(0, 3, 1, True), (1, 0, 6, False), (2, 0, 1, True)]
    assert chunks(served.plans[2]) == [(0, 4, 1, True), (2, 1, 1, True), (1, 6, 4, True)]


@pytest.mark.parametrize("hashed", ["with hashes", "with those of another block size", "without hashes"])
def test_a_prompt_that_came_as_an_array_is_served_as_any_other(hashed):
    prompt = [number % 50 + 1 for number in range(41)]
    packed, block_size = wire.packed_ids(prompt), 4 if hashed == "with hashes" else 8
    joined = hashes.prompt_block_hashes(packed, root=hashes.block_root(salt=b"s"), block_size=block_size)
    served = {}
    for way in ("plain", "packed"):
        runs = endless(max_batch_tokens=16)
        for name in ("a", "b"):  # the second finds the blocks of the first
            made = request(name, prompt, max_tokens=6, salt=b"s")
            if way == "packed":
                found = b"" if hashed == "without hashes" else joined
                made = msgspec.structs.replace(made, prompt=(), packed_prompt=packed, block_hashes=found)
            runs.submit(made)
            runs.finish()
        served[way] = runs
    assert served["packed"].plans == served["plain"].plans
    assert served["packed"].answers == served["plain"].answers
    assert served["packed"].answers["b"].cached_tokens == 40


def test_rows_limit_how_many_run():
    served = endless(max_sequences=2)
    served.submit(*(request(name, [1, 2]) for name in "abc"))
    served.step()
    assert [join.request_id for join in served.plans[0].joins] == ["a", "b"]
    assert served.scheduler.report(RuntimeState()).waiting == 1


def test_everybody_who_runs_moves_in_every_step():
    served = endless(max_sequences=8, max_batch_tokens=4)
    served.submit(*(request(str(number), [1]) for number in range(6)))
    served.step()
    served.step()
    assert [len(plan.chunks) for plan in served.plans] == [4, 4]


def test_arrivals_are_admitted_in_order_even_if_a_later_one_would_fit():
    served = endless(num_blocks=8, max_batch_tokens=64)
    served.submit(request("a", range(1, 18)), request("b", range(1, 17)), request("c", [1]))
    served.step()
    assert [join.request_id for join in served.plans[0].joins] == ["a"]


def test_a_prefix_hit_shares_full_blocks_and_computes_at_least_one_token():
    served = endless()
    served.submit(request("a", range(1, 13), max_tokens=1))
    served.finish()
    served.submit(request("b", range(1, 13), max_tokens=1), request("c", [*range(1, 13), 9], max_tokens=1))
    served.finish()
    assert [join.computed_tokens for plan in served.plans for join in plan.joins] == [0, 8, 12]
    assert served.answers["b"].cached_tokens == 8
    assert served.answers["a"].tokens == served.answers["b"].tokens
    first, second, third = (join.tables[0] for plan in served.plans for join in plan.joins)
    assert first[:2] == second[:2]
    assert first[:3] == third[:3]


@pytest.mark.parametrize(("salt", "cached"), [(b"", 8), (b"other", 0)])
def test_tenants_share_nothing(salt, cached):
    served = endless()
    served.submit(request("a", range(1, 13), max_tokens=1))
    served.finish()
    served.submit(request("b", range(1, 13), salt=salt))
    served.finish()
    assert served.answers["b"].cached_tokens == cached
    first, second = [join.root for plan in served.plans for join in plan.joins]
    assert first
    assert (second == first) is bool(cached)


def test_answers_are_cached_too():
    served = endless()
    served.submit(request("a", [1, 2, 3], max_tokens=7))
    served.finish()
    talk = [1, 2, 3, *served.answers["a"].tokens, 5]
    served.submit(request("b", talk))
    served.finish()
    assert served.answers["b"].cached_tokens == 8


def test_without_prefix_cache_nothing_is_kept():
    served = endless(prefix_cache=False)
    served.submit(request("a", range(1, 13)))
    served.finish()
    served.submit(request("b", range(1, 13)))
    served.finish()
    assert served.answers["b"].cached_tokens == 0
    assert served.scheduler.pool.num_free == 64


@pytest.mark.parametrize("depth", [1, 2])
def test_the_latest_arrival_is_preempted_and_its_answer_does_not_change(depth):
    requests = [request("a", range(1, 8), max_tokens=20), request("b", range(2, 9), max_tokens=20)]
    roomy, tight = endless(), endless(depth=depth, num_blocks=9)
    for served in (roomy, tight):
        served.submit(*requests)
        served.finish()
    report = tight.scheduler.report(RuntimeState())
    assert report.totals.preemptions == 1
    assert [join.request_id for plan in tight.plans for join in plan.joins] == ["a", "b", "b"]
    assert {name: answer.tokens for name, answer in tight.answers.items()} == {
        name: answer.tokens for name, answer in roomy.answers.items()
    }


def test_no_request_is_admitted_in_a_step_that_preempted():
    served = endless(num_blocks=9)
    served.submit(request("a", range(1, 8), max_tokens=20), request("b", range(2, 9), max_tokens=20))
    served.submit(request("c", [1]))
    while not served.scheduler.report(RuntimeState()).totals.preemptions:
        served.step()
    assert not served.plans[-1].joins
    served.finish()


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (request("a", []), "the prompt is empty"),
        (request("a", [1], max_tokens=0), "max_tokens is 0, expected at least 1"),
        (
            request("a", [1] * 64),
            "the prompt has 64 tokens, and prompt and answer together may have 64 here",
        ),
    ],
)
def test_what_can_never_run_is_refused_at_once(made, message):
    served = serving(max_model_len=64)
    served.submit(made)
    assert served.answers["a"].reason == "error"
    assert served.answers["a"].message == message
    assert not served.scheduler.has_work


def test_a_prompt_larger_than_the_cache_is_refused():
    served = serving(num_blocks=2)
    served.submit(request("a", [1] * 9))
    assert served.answers["a"].message == "the prompt has 9 tokens, and prompt and answer together may have 9 here"


def test_the_same_id_twice_is_refused_and_the_first_goes_on():
    served = endless()
    served.submit(request("a", [1, 2]))
    refused = served.scheduler.submit(request("a", [3]), 0.0)
    assert refused is not None
    assert refused.finish_reason == "error"
    served.finish()
    assert served.answers["a"].reason == "length"


@pytest.mark.parametrize(
    ("settings", "max_tokens", "answer"),
    [({}, 5, 5), ({"max_model_len": 16}, 99, 13), ({"num_blocks": 3}, 99, 10)],
)
def test_an_answer_ends_at_the_first_limit(settings, max_tokens, answer):
    served = endless(**settings)
    served.submit(request("a", [1, 2, 3], max_tokens=max_tokens))
    served.finish()
    assert served.answers["a"].reason == "length"
    assert len(served.answers["a"].tokens) == answer


@pytest.mark.parametrize(
    ("sampling", "tokens", "reason", "stop"),
    [
        ({}, [], "stop", 0),
        ({"ignore_eos": True}, [0, 0, 0, 0], "length", None),
        ({"ignore_eos": True, "stop_token_ids": (0,)}, [], "stop", 0),
        ({"min_tokens": 2}, [7, 7], "stop", 0),
        ({"min_tokens": 2, "ignore_eos": True}, [7, 7, 0, 0], "length", None),
        ({"stop_token_ids": (7,), "min_tokens": 1}, [5], "stop", 0),
        ({"min_tokens": 4}, [7, 7, 7, 7], "length", None),
    ],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_ends_by_token(sampling, tokens, reason, stop, depth):
    served = serving(depth=depth, runner=FakeRunner(model=Ordered(table=(0, 7, 5))))
    served.submit(request("a", [1], max_tokens=4, **sampling))
    served.finish()
    answer = served.answers["a"]
    assert (answer.tokens, answer.reason, answer.stop_token_id) == (tokens, reason, stop)


class Ordered(FakeModel):
    """Always the first token of the table that is not forbidden."""

    def next_token(self, context, seed=0, forbidden=()):
        return next(token for token in self.table if token not in forbidden)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_an_abort_frees_everything_within_the_plans_in_flight(depth, steps):
    served = endless(depth=depth, prefix_cache=False)
    served.submit(request("a", [1, 2, 3, 4, 5], max_tokens=99))
    for _ in range(steps):
        served.step()
    served.scheduler.abort("a", served.now)
    served.scheduler.abort("a", served.now)
    assert not served.scheduler.has_work
    for _ in range(depth - 1):
        served.step()
    assert served.scheduler.pool.num_free == 64
    assert not served.answers["a"].reason
    assert served.scheduler.report(RuntimeState()).totals.aborts == 1


def test_a_stop_string_counts_as_completed():
    served = endless()
    served.submit(request("a", [1]))
    served.step()
    served.scheduler.abort("a", served.now, success=True)
    totals = served.scheduler.report(RuntimeState()).totals
    assert (totals.aborts, totals.completions) == (0, 1)


def test_blocks_of_an_ended_sequence_wait_for_the_plan_that_names_them():
    served = serving(depth=2, runner=FakeRunner(model=Ordered(table=(0,))), prefix_cache=False)
    served.submit(request("a", [1, 2, 3, 4]))
    served.step()
    # The first token was EOS; the second plan, already launched, still writes into the blocks of the sequence.
    assert served.answers["a"].reason == "stop"
    assert served.scheduler.pool.num_pinned == 2
    served.step()
    assert served.scheduler.pool.num_pinned == 0
    assert served.answers["a"].tokens == []


def test_results_of_another_plan_are_refused():
    served = endless()
    served.submit(request("a", [1]))
    with pytest.raises(ValueError, match="results of step 1, expected those of none"):
        served.scheduler.commit(StepResults(step=1, sampled=()), 0.0)
    served.scheduler.plan(0.0)
    with pytest.raises(ValueError, match="results of step 2, expected those of 1"):
        served.scheduler.commit(StepResults(step=2, sampled=()), 0.0)
    with pytest.raises(ValueError, match="not one for each chunk"):
        served.scheduler.commit(StepResults(step=1, sampled=(SampledTokens(3, (1,)),)), 0.0)


def test_a_failed_step_ends_those_who_run_and_spares_those_who_wait():
    served = endless(max_sequences=1)
    served.submit(request("a", [1, 2]), request("b", [3]))
    served.scheduler.plan(1.0)
    events = served.scheduler.fail_running(StepFailure(message="no memory"), 2.0)
    assert [(event.request_id, event.finish_reason, event.message) for event in events] == [("a", "error", "no memory")]
    assert not served.scheduler._launched
    del served.answers["a"]
    served.finish()
    assert served.answers["b"].reason == "length"
    assert served.plans[0].leaves == (0,)


def test_a_speculating_runner_may_give_several_tokens():
    served = endless()
    served.submit(request("a", [1], max_tokens=3))
    plan = served.scheduler.plan(0.0)
    assert plan is not None
    (event,) = served.scheduler.commit(StepResults(step=1, sampled=(SampledTokens(0, (4, 5, 6, 7)),)), 0.0)
    assert (event.token_ids, event.finish_reason) == ((4, 5, 6), "length")


def test_the_report_counts_tokens_requests_and_time():
    served = endless(num_blocks=16, max_batch_tokens=8)
    served.submit(request("a", range(1, 9), max_tokens=4, route_hashes=(b"\x01" * 8, b"\x02" * 8)))
    served.submit(request("b", range(1, 13)))
    served.step()
    state = served.scheduler.report(RuntimeState(model="m", phase="ready"))
    assert (state.model, state.phase, state.step, state.sequence_number) == ("m", "ready", 1, 1)
    assert (state.running, state.waiting, state.waiting_uncached_tokens, state.remaining_tokens) == (1, 1, 4, 3)
    assert (state.expected_tokens, state.reused_tokens) == (3, 0)
    kv = state.kv
    assert (kv.pinned_tokens, kv.cached_tokens, kv.free_tokens, kv.capacity_tokens) == (8, 0, 56, 64)
    changes = served.scheduler.prefixes.changes()
    assert changes is not None
    assert (changes.sequence, changes.hashes) == (2, b"\x02" * 8 + b"\x01" * 8)
    served.finish()
    state = served.scheduler.report(RuntimeState())
    assert state.sequence_number == 2
    assert (state.kv.pinned_tokens, state.kv.cached_tokens) == (0, 16)
    totals = state.totals
    assert (totals.arrivals, totals.completions, totals.generation_tokens) == (2, 2, 12)
    assert (totals.prompt_tokens, totals.prefix_query_tokens, totals.prefix_hit_tokens) == (20, 20, 8)
    assert totals.prefix_saved_s == 0.0, "no rate was measured"
    assert (state.expected_tokens, state.reused_tokens) == (0, 8)
    # In block-seconds: a held 2 for 1 s and 3 for 2 s; b, besides the two it shared, 1 for 1 s, 2 for 4 s, 3 for 2 s.
    assert totals.kv_token_seconds == 4 * (2 + 6 + 1 + 8 + 6)


def test_the_report_has_what_was_decoded():
    served = endless()
    served.scheduler.throughput.observe(
        StepPlan(step=1, chunks=(Chunk(row=0, start=4, num_tokens=1, samples=True),)), 0.5
    )
    state = served.scheduler.report(RuntimeState())
    assert state.decoded == DecodeTotals(steps=1, seconds=0.5, rows=1, kv_tokens=5)
    assert state.rates.decode_step_s == 0.5


def test_what_is_still_to_come_is_estimated_by_what_was_answered():
    served = endless(max_sequences=2)
    served.submit(request("a", [1, 2], max_tokens=6))
    served.finish()
    served.submit(*(request(name, [1, 2], max_tokens=limit) for name, limit in (("b", 4), ("c", 500), ("d", 500))))
    served.step()
    state = served.scheduler.report(RuntimeState())
    # The mean of the answers is 6: b is bound by its 3 that are left, c and d, which waits, by nothing.
    assert (state.running, state.waiting, state.expected_tokens) == (2, 1, 3 + 6 + 6)
    assert state.remaining_tokens > state.expected_tokens


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_step_is_spent_beyond_the_known_end(depth):
    served = endless(depth=depth)
    served.submit(request("a", [1, 2, 3], max_tokens=5))
    served.finish()
    assert len(served.plans) == 5


@pytest.mark.parametrize("depth", [1, 2])
def test_choices_of_one_prompt_wait_for_the_first_and_share_its_blocks(depth):
    served = endless(depth=depth)
    served.submit(*(request(name, range(1, 22), temperature=1.0, seed=seed) for seed, name in enumerate("abcd")))
    served.finish()
    assert [served.answers[name].cached_tokens for name in "abcd"] == [0, 20, 20, 20]
    assert sum(chunk.num_tokens for plan in served.plans for chunk in plan.chunks) < 2 * 21 + 4 * 8


def test_no_request_waits_for_blocks_whose_maker_is_gone_or_for_a_few():
    served = endless(max_batch_tokens=8)
    served.submit(request("a", range(1, 22)), request("b", range(1, 22)), request("c", range(30, 38)))
    served.step()
    assert [join.request_id for join in served.plans[-1].joins] == ["a", "c"], "c passes b, which waits for a's blocks"
    served.scheduler.abort("a", served.now)
    served.answers.pop("a")
    served.finish()
    assert served.answers["b"].tokens
