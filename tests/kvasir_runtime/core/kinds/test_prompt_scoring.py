"""Prompts whose logprobs are reported: each token once, however the prompt is cut into chunks and steps fail."""

import pytest

from fakes.serving import request, serving
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.kinds.factory import new_kind
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import SampledTokens, StepResults
from kvasir_runtime.core.plan_builder import PlanBuilder
from kvasir_runtime.wire import Logprobs

LIMITS = Limits(num_blocks=16, block_size=4, max_batch_tokens=16, max_sequences=4, max_model_len=20)


def kind_of(name, **sampling):
    return new_kind(request(name, range(1, 11), **sampling), limits=LIMITS, pool=BlockPool(16), now=0.0)


def launched(kind, budget):
    """The chunk that it puts into a plan of this budget."""
    builder = PlanBuilder(step=1, budget=budget)
    kind.advance(builder, [])
    return builder.launched[0], builder.chunks[0].scores


def test_each_token_of_a_prompt_is_scored_once_also_where_a_step_failed():
    served = serving(num_blocks=8, depth=2, max_batch_tokens=6)
    for name in "ab":
        served.submit(request(name, range(1, 11), prompt_logprobs=0, max_tokens=12))
    seen = {"a": [], "b": []}
    for now in range(60):
        while len(served.flight) < 2 and (plan := served.scheduler.plan(now)) is not None:
            served.flight.append((plan, served.runner.launch(plan)))
        if not served.flight:
            break
        for event in served.scheduler.commit(served.runner.collect(served.flight.popleft()[1]), now):
            seen[event.request_id] += [one.logprob for one in event.prompt_logprobs]
    assert seen == {name: [-float(position) for position in range(1, 10)] for name in "ab"}


def test_a_chunk_whose_step_failed_is_scored_again_by_who_waited():
    kind = kind_of("a", prompt_logprobs=0)
    assert kind.reusable == 0
    (chunk, scores), (_, more) = launched(kind, 4), launched(kind, 6)
    assert [scores, more] == [(1, 5), (5, 10)]
    assert kind.reusable == 9
    kind.accept(chunk, None, (Logprobs(-1.0, 1),) * 4, b"", 0.0)
    kind.drop_in_flight()
    kind.sequence.computed = 0
    assert (kind.reusable, launched(kind, 10)[1]) == (4, (5, 10))
    plain = kind_of("b")
    assert (plain.reusable, launched(plain, 10)[1]) == (9, (0, 0))


def test_results_without_the_scores_of_the_plan_are_refused():
    served = serving()
    served.submit(request("a", [1, 2, 3], prompt_logprobs=0))
    plan = served.scheduler.plan(1.0)
    assert [chunk.scores for chunk in plan.chunks] == [(1, 3)]
    with pytest.raises(ValueError, match="scores"):
        served.scheduler.commit(StepResults(step=plan.step, sampled=(SampledTokens(0, (5,)),)), 1.0)
