"""Guided requests are computed ahead of their masks; what a grammar forces takes the place of what was launched."""

from fakes.serving import request, serving
from kvasir_runtime.core.plan import SampledTokens, StepResults
from kvasir_runtime.wire import Grammar


def chunks(plan):
    return [(chunk.row, chunk.start, chunk.num_tokens, chunk.samples) for chunk in plan.chunks]


def test_forced_tokens_void_what_was_launched_behind_the_token_that_led_to_them():
    """Two in flight: the second computed the place of 11 before 12 and 13 were known to follow it."""
    scheduler = serving(max_batch_tokens=64).scheduler
    scheduler.submit(request("a", [1, 2, 3], max_tokens=9, grammar=Grammar(kind="json_object")), 0.0)
    first, second = scheduler.plan(0.0), scheduler.plan(0.0)
    assert [chunks(plan) for plan in (first, second)] == [[(0, 0, 3, True)], [(0, 3, 1, True)]]
    assert scheduler.plan(0.0) is None, "a third would be drawn by a mask that two tokens are missing for"
    (event,) = scheduler.commit(StepResults(step=1, sampled=(SampledTokens(0, (11, 12, 13)),)), 0.0)
    assert event.token_ids == (11, 12, 13)
    third = scheduler.plan(0.0)
    assert chunks(third) == [(0, 4, 2, True)], "what was forced, and not the place of 11 again"
    assert scheduler.commit(StepResults(step=2, sampled=(SampledTokens(0, ()),)), 0.0) == ()
    (event,) = scheduler.commit(StepResults(step=3, sampled=(SampledTokens(0, (14,)),)), 0.0)
    assert event.token_ids == (14,)
    assert chunks(scheduler.plan(0.0)) == [(0, 6, 1, True)]


def test_a_deferred_sample_is_drawn_behind_the_last_known_token_computed_again():
    scheduler = serving(max_batch_tokens=64).scheduler
    scheduler.submit(request("a", [1, 2, 3, 4], max_tokens=9, grammar=Grammar(kind="json_object")), 0.0)
    assert [chunks(scheduler.plan(0.0)) for _ in range(2)] == [[(0, 0, 4, True)], [(0, 4, 1, True)]]
    assert scheduler.commit(StepResults(step=1, sampled=(SampledTokens(0, (), deferred=True),)), 0.0) == ()
    assert chunks(scheduler.plan(0.0)) == [(0, 3, 1, True)], "before what was launched meanwhile is collected"
    assert scheduler.commit(StepResults(step=2, sampled=(SampledTokens(0, ()),)), 0.0) == ()
    (event,) = scheduler.commit(StepResults(step=3, sampled=(SampledTokens(0, (11,)),)), 0.0)
    assert event.token_ids == (11,)
    assert chunks(scheduler.plan(0.0)) == [(0, 4, 1, True)]
