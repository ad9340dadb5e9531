"""A launched step for which there was no memory: its requests are computed in smaller ones, with the same answers."""

import itertools

import pytest

from fakes.host import FakeHost
from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import SampledTokens, StepFailure, StepResults
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.wire import EngineRequest, SamplingConfig

NO_EOS = FakeModel(table=tuple(range(1, 61)))


def no_memory(step):
    return StepFailure(message="no memory", step=step, lacks_memory=True)


def served_with(**limits):
    """Four requests behind one another's prefix; the model never says EOS."""
    served = serving(runner=FakeRunner(model=NO_EOS), **limits)
    served.submit(*(request(name, range(1, 7), max_tokens=6) for name in "abcd"))
    return served


def test_it_is_taken_again_in_halves_and_no_preemption_is_counted():
    served, undisturbed = (served_with(max_batch_tokens=16, max_sequences=4) for _ in range(2))
    plan = served.scheduler.plan(1.0)
    assert served.scheduler.fail_running(no_memory(plan.step), 2.0) == ()
    state = served.scheduler.report(RuntimeState())
    assert (state.waiting, state.kv.pinned_tokens) == (4, 0)
    served.finish()
    assert max(later.num_tokens for later in served.plans) == plan.num_tokens // 2
    undisturbed.finish()
    assert [one.tokens for one in served.answers.values()] == [one.tokens for one in undisturbed.answers.values()]
    totals = served.scheduler.report(RuntimeState()).totals
    assert (totals.memory_failures, totals.preemptions, totals.completions) == (1, 0, 4)


def test_only_a_request_that_was_alone_in_the_smallest_step_ends():
    served = serving(runner=FakeRunner(model=NO_EOS), max_sequences=2)
    served.submit(request("a", [1, 2]), request("b", [3, 4, 5]))
    ended = []
    for _ in range(5):
        plan = served.scheduler.plan(1.0)
        outputs = served.scheduler.fail_running(no_memory(plan.step), 2.0)
        ended.append((plan.num_tokens, [(output.request_id, output.message) for output in outputs]))
        if not served.scheduler.has_work:
            break
    assert ended == [(5, []), (2, []), (1, [("a", "no memory")]), (1, [("b", "no memory")])]


def decoding(names, **limits):
    """Requests whose answers repeat one token, up to a step that has drafts, which is not collected. What they say
    undisturbed comes with it.
    """
    found = []
    for _ in range(2):
        served = serving(runner=FakeRunner(model=FakeModel(table=(5,))), speculation="suffix", **limits)
        served.submit(*(request(name, [1, 2], max_tokens=24) for name in names))
        found.append(served)
    served, undisturbed = found
    undisturbed.finish()
    plan = served.scheduler.plan(1.0)
    while not any(chunk.drafts for chunk in plan.chunks):
        served.flight.append((plan, served.runner.launch(plan)))
        served.step()
        plan = served.scheduler.plan(1.0)
    return served, plan, [one.tokens for one in undisturbed.answers.values()]


@pytest.mark.parametrize("names", ["a", "abcd"])
def test_without_memory_for_drafts_all_go_on_without_them(names):
    served, plan, answers = decoding(names)
    assert served.scheduler.fail_running(no_memory(plan.step), 2.0) == ()
    first = len(served.plans)
    served.finish()
    assert [one.tokens for one in served.answers.values()] == answers
    later = served.plans[first:]
    assert not any(chunk.drafts for one in later for chunk in one.chunks)
    assert len(later[-2].chunks) == len(names), "no stream waits for others: steps are as large as they were"


@pytest.mark.parametrize("stages", [1, 2])
def test_drafts_come_back_after_longer_and_longer(stages):
    """Over two stages the step of one request is asked for beside the one in flight, and is no step of its own."""
    limits = Limits(
        num_blocks=1_000,
        block_size=16,
        max_batch_tokens=64,
        max_sequences=1,
        max_model_len=9_000,
        speculation="suffix",
        stages=stages,
    )
    scheduler, tries = Scheduler(limits), []
    prompt = EngineRequest(request_id="r", prompt=(5, 5, 5, 5), sampling=SamplingConfig(max_tokens=8_000))
    assert scheduler.submit(prompt, 0.0) is None
    for step in range(1_200):
        plan = scheduler.plan(float(step))
        assert stages == 1 or scheduler.plan(float(step)) is None
        if any(chunk.drafts for chunk in plan.chunks):
            tries.append(step)
            assert scheduler.fail_running(no_memory(plan.step), step + 0.5) == ()
        else:
            sampled = tuple(SampledTokens(chunk.row, (5,)) for chunk in plan.chunks if chunk.samples)
            scheduler.commit(StepResults(step=plan.step, sampled=sampled), step + 0.5)
    waits = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert waits == [129, 257, 513]


@pytest.mark.parametrize("step", [0, 1])
def test_without_a_step_of_tokens_all_wait_again_for_steps_as_large(step):
    served = served_with(max_batch_tokens=24, max_sequences=4, prefix_cache=False)
    served.step()
    assert served.scheduler.fail_running(no_memory(step), 2.0) == ()
    state = served.scheduler.report(RuntimeState())
    assert (state.waiting, state.kv.pinned_tokens, state.totals.memory_failures) == (4, 0, 1)
    served.finish()
    assert [plan.num_tokens for plan in served.plans[:2]] == [24, 24]
    assert [len(one.tokens) for one in served.answers.values()] == [6] * 4


def test_copies_that_ended_behind_a_failed_step_are_not_lost():
    host = FakeHost(num_slots=200, delay=2)
    served = serving(runner=FakeRunner(model=NO_EOS, host=host), num_blocks=32, host_blocks=200, depth=2)
    long = list(range(1, 41))
    for name, prompt in (("a", long), ("b", range(200, 300)), ("streams", [7, 8, 9])):
        served.submit(request(name, prompt, max_tokens=60 if name == "streams" else 2))
        while name != "streams" and served.scheduler.has_work:
            served.step()
    served.step()
    served.submit(request("waits", long, max_tokens=2))
    while not served.plans[-1].loads:
        served.step()
    plan = served.scheduler.plan(served.now)
    served.flight.append((plan, served.runner.launch(plan)))
    results = [served.runner.collect(handle) for _, handle in served.flight]
    ended = [step.transfers for step in results if step.transfers is not None]
    assert [bool(one.loaded) for one in ended] == [False, True], "the step that fails reports none of them"
    failed = served.lose_flight()[0].step
    served.scheduler.fail_running(StepFailure(message="x", step=failed, lacks_memory=True, transfers=(ended[1],)), 99.0)
    served.finish()
    state = served.scheduler.report(RuntimeState())
    assert state.kv_host.missed_tokens == 0 < state.kv_host.loaded_tokens
    assert served.answers["waits"].tokens == served.answers["a"].tokens


FINDS = {  # whether there is memory for a step, by its tokens and the last position that it computes
    "by tokens": lambda tokens, _: tokens <= 500,
    "by few tokens": lambda tokens, _: tokens <= 4,
    "by tokens and what they see": lambda tokens, end: tokens * end <= 256 * 40_000,
}


@pytest.mark.parametrize(
    ("finds", "num_tokens"),
    [("by tokens", 40_000), ("by few tokens", 2_000), ("by tokens and what they see", 40_000)],
)
def test_a_prompt_longer_than_what_fits_between_two_tries_ends(finds: str, num_tokens: int) -> None:
    """Each failed try of larger steps costs all of it, since nothing of it is cached."""
    limits = Limits(
        num_blocks=2_600, block_size=16, max_batch_tokens=512, max_sequences=2, max_model_len=41_000, prefix_cache=False
    )
    scheduler, failures = Scheduler(limits), 0
    prompt = EngineRequest(request_id="r", prompt=tuple(range(num_tokens)), sampling=SamplingConfig(max_tokens=2))
    assert scheduler.submit(prompt, 0.0) is None
    for step in range(3_000):
        if not scheduler.has_work:
            break
        plan = scheduler.plan(float(step))
        assert plan is not None
        if FINDS[finds](plan.num_tokens, plan.chunks[0].start + plan.num_tokens):
            sampled = tuple(SampledTokens(chunk.row, (7,)) for chunk in plan.chunks if chunk.samples)
            scheduler.commit(StepResults(step=plan.step, sampled=sampled), step + 0.5)
        else:
            failures += 1
            assert scheduler.fail_running(no_memory(plan.step), step + 0.5) == ()
    assert not scheduler.has_work
    assert failures <= 12
