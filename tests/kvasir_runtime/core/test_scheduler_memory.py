"""A launched step for which there was no memory: its requests are computed in smaller ones, with the same answers."""

import pytest

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import SampledTokens, StepResults
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.wire import EngineRequest, SamplingConfig

NO_EOS = FakeModel(table=tuple(range(1, 61)))


def served_with(**limits):
    """Four requests behind one another's prefix; the model never says EOS."""
    served = serving(runner=FakeRunner(model=NO_EOS), **limits)
    served.submit(*(request(name, range(1, 7), max_tokens=6) for name in "abcd"))
    return served


def test_it_is_taken_again_in_halves_and_no_preemption_is_counted():
    served, undisturbed = (served_with(max_batch_tokens=16, max_sequences=4) for _ in range(2))
    plan = served.scheduler.plan(1.0)
    assert served.scheduler.fail_running("no memory", 2.0, no_memory=plan.step) == ()
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
        outputs = served.scheduler.fail_running("no memory", 2.0, no_memory=plan.step)
        ended.append((plan.num_tokens, [(output.request_id, output.message) for output in outputs]))
        if not served.scheduler.has_work:
            break
    assert ended == [(5, []), (2, []), (1, [("a", "no memory")]), (1, [("b", "no memory")])]


def test_a_step_that_was_collected_or_has_no_tokens_ends_those_that_run():
    served = served_with(max_sequences=1)
    served.step()
    assert [one.request_id for one in served.scheduler.fail_running("no memory", 2.0, no_memory=1)] == ["a"]
    assert served.scheduler.report(RuntimeState()).totals.memory_failures == 0


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
            assert scheduler.fail_running("no memory", step + 0.5, no_memory=plan.step) == ()
    assert not scheduler.has_work
    assert failures <= 12
