"""One simulated pod: the KV contract, prompts in order, shared decode, and the counters of a runtime."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir_operator.scaling.plausibility import contradiction
from kvasir_operator.simulation.pod_model import ActiveRequest, PodModel, PodProfile
from kvasir_operator.simulation.traffic import SimulatedRequest

PROFILE = PodProfile(kv_tokens=1_000, slots=4, prefill_tokens_per_s=100.0, step_base_s=0.1, step_slope_s=0.1)


def request(number, prompt=100, output=10, **fields):
    return ActiveRequest(request=SimulatedRequest(number=number, at=0.0, prompt=prompt, output=output, **fields))


def worked(pod, seconds, *, since=0.0):
    ended = []
    for number in range(round(seconds / 0.5)):
        ended += pod.advance(since + 0.5 * number, 0.5)
    return ended


def pod(profile=PROFILE):
    return PodModel(0, profile, created=0.0, ready_at=0.0)


def test_a_request_takes_its_prompt_and_its_steps():
    one = pod()
    one.submit(request(0))
    (done,) = worked(one, 10)
    assert done.first_at == pytest.approx(1.0)  # 100 tokens at 100/s
    assert done.ended_at == pytest.approx(3.0)  # 10 steps of 0.2 s
    state = one.state()
    assert (state.totals.arrivals, state.totals.completions, state.kv.pinned_tokens) == (1, 1, 0)
    assert state.decoded.seconds / state.decoded.steps == pytest.approx(0.2)


def test_sequences_slow_one_another_down():
    both = pod()
    both.submit(request(0))
    both.submit(request(1))
    ends = [done.ended_at for done in worked(both, 20)]
    assert max(ends) > 4.0


def test_what_has_no_slot_or_no_cache_waits():
    full = pod()
    for number in range(6):
        full.submit(request(number, prompt=300, output=50))
    full.advance(0.0, 0.5)
    assert (full.running, len(full.waiting)) == (3, 3)  # three prompts fill 950 tokens
    assert full.state().waiting_uncached_tokens == 900


def test_a_prefix_that_was_seen_is_not_computed_again():
    warm = pod()
    warm.submit(request(0, prompt=200, group=7, shared=150))
    worked(warm, 10)
    warm.submit(request(1, prompt=200, group=7, shared=150))
    assert warm.state().waiting_uncached_tokens == 50
    assert (warm.state().totals.prefix_query_tokens, warm.state().totals.prefix_hit_tokens) == (400, 150)


def test_a_pod_that_leaves_hands_back_what_it_has_not_begun():
    leaving = pod()
    for number in range(6):
        leaving.submit(request(number))
    leaving.advance(0.0, 0.5)
    assert len(leaving.handed_back()) == 2
    assert (leaving.ready(1.0), leaving.load, leaving.state().phase) == (False, 4, "draining")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 600), st.integers(1, 400)), max_size=12))
def test_whatever_comes_the_reading_is_one_that_a_runtime_could_give(lengths):
    busy, number = pod(), 0
    for number, (prompt, output) in enumerate(lengths):
        busy.submit(request(number, prompt=prompt, output=output))
        busy.advance(number, 0.5)
        state = busy.state()
        assert contradiction(state) == ""
        assert state.kv.pinned_tokens + state.kv.free_tokens == state.kv.capacity_tokens
    worked(busy, 1_500, since=number)
    state = busy.state()
    assert state.totals.completions == len(lengths) == state.totals.arrivals
    assert (state.running, state.waiting, state.kv.pinned_tokens) == (0, 0, 0)


def test_a_full_queue_refuses_and_counts_tries():
    full = pod(replace(PROFILE, max_waiting=2))
    assert [full.submit(request(number)) for number in range(7)] == [True] * 6 + [False]
    full.advance(0.0, 0.5)
    assert not full.submit(request(6), is_retry=True)
    assert (full.state().served.refused, full.state().served.retried) == (2, 1)
    assert full.state().totals.arrivals == 6
