"""Prompts that are pooled: which positions, what ends them, and what they may share; the fake runner checks blocks."""

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.runner import FakeRunner
from fakes.serving import serving
from kvasir_api.cache_groups import BIDIRECTIONAL
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.plan import StepFailure
from kvasir_runtime.wire import EngineRequest, PoolingConfig, SamplingConfig

LAST, MEAN, CLS = PoolingConfig(kind="last"), PoolingConfig(kind="mean"), PoolingConfig(kind="cls")


def pooled(name, prompt, pooling):
    return EngineRequest(request_id=name, prompt=tuple(prompt), sampling=SamplingConfig(max_tokens=1), pooling=pooling)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("pooling", "want"), [(LAST, [20]), (MEAN, list(range(1, 21)))])
def test_a_prompt_gives_one_vector_of_the_wanted_positions(depth, pooling, want):
    served = serving(depth, max_batch_tokens=6)
    served.submit(pooled("a", range(1, 21), pooling))
    served.finish()
    answer = served.answers["a"]
    assert (answer.reason, answer.tokens) == ("stop", [])
    assert answer.pooled == struct.pack(f"<{len(want)}f", *want)
    assert served.scheduler.pool.num_pinned == 0


@pytest.mark.parametrize(("pooling", "cached"), [(LAST, 16), (MEAN, 0)])
def test_a_mean_takes_nothing_from_the_prefix_cache(pooling, cached):
    served = serving()
    served.submit(pooled("a", range(1, 20), pooling))
    served.finish()
    served.submit(pooled("b", range(1, 20), pooling))
    served.finish()
    assert served.answers["b"].cached_tokens == cached
    assert served.answers["b"].pooled == served.answers["a"].pooled


def test_a_mean_leaves_its_blocks_for_others():
    served = serving()
    served.submit(pooled("a", range(1, 20), MEAN))
    served.finish()
    served.submit(pooled("b", range(1, 20), LAST))
    served.finish()
    assert served.answers["b"].cached_tokens == 16


@pytest.mark.parametrize("pooling", [LAST, MEAN])
def test_a_prompt_may_fill_the_model_and_the_cache(pooling):
    served = serving(num_blocks=4, max_model_len=16)
    served.submit(pooled("fits", range(16), pooling), pooled("long", range(17), pooling), pooled("empty", (), pooling))
    served.finish()
    assert served.answers["fits"].reason == "stop"
    assert served.answers["long"].reason == served.answers["empty"].reason == "error"
    assert "may have 16 here" in served.answers["long"].message


def test_a_failed_step_ends_it_with_an_error_and_an_abort_without_an_event():
    served = serving(runner=FakeRunner(fail_steps=frozenset({1})))
    served.submit(pooled("a", range(1, 9), MEAN))
    served.scheduler.abort("a", 0.0)
    assert not served.scheduler.has_work
    served.submit(pooled("b", range(1, 9), MEAN))
    with pytest.raises(RuntimeError):
        served.step()
    events = served.scheduler.fail_running(StepFailure(message="broken"), 1.0)
    assert [event.finish_reason for event in events] == ["error"]


def test_it_has_nothing_left_to_generate_and_takes_no_ids_from_outside():
    served = serving(max_batch_tokens=6)
    served.submit(pooled("a", range(1, 21), MEAN))
    served.step()
    assert served.scheduler.report(RuntimeState()).remaining_tokens == 0
    served.scheduler.inject("a", (5, 5))
    served.finish()
    assert len(served.answers["a"].pooled) == 4 * 20


def encoder(depth=1, budget=16, **limits):
    """Nothing is kept: prompts are computed whole, in steps of at most budget tokens."""
    made = {"block_size": 1, "max_batch_tokens": budget, "num_blocks": 2 * budget, "max_model_len": budget, **limits}
    return serving(
        depth, FakeRunner(attentions=(BIDIRECTIONAL,)), attentions=(BIDIRECTIONAL,), prefix_cache=False, **made
    )


def whole_prompts(served):
    """Lengths of the chunks of each step, each of which computes all of a prompt."""
    lengths = []
    for plan in served.plans:
        assert all(chunk.start == 0 for chunk in plan.chunks)
        lengths.append([chunk.num_tokens for chunk in plan.chunks])
    return lengths


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("pooling", "want"), [(LAST, [9]), (CLS, [1]), (MEAN, list(range(1, 10)))])
def test_an_encoder_computes_a_prompt_in_one_step(depth, pooling, want):
    served = encoder(depth)
    served.submit(pooled("a", range(1, 10), pooling), pooled("b", range(1, 10), pooling))
    served.finish()
    for name in ("a", "b"):
        assert served.answers[name].pooled == struct.pack(f"<{len(want)}f", *want)
        assert served.answers[name].cached_tokens == 0
    assert whole_prompts(served) == [[9], [9]]
    assert served.scheduler.pool.num_pinned == 0


def test_short_prompts_pass_one_that_a_step_has_no_room_for_and_it_is_next():
    served = encoder(max_sequences=8)
    served.submit(*(pooled(str(at), range(1, length + 1), CLS) for at, length in enumerate((10, 12, 4, 2, 16, 1))))
    served.finish()
    assert whole_prompts(served) == [[10, 4, 2], [12, 1], [16]]
    assert {answer.reason for answer in served.answers.values()} == {"stop"}


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 16), min_size=1, max_size=30),
    rows=st.integers(1, 8),
    depth=st.sampled_from([1, 2]),
)
def test_every_prompt_of_an_encoder_ends_and_no_step_has_too_much(lengths, rows, depth):
    served = encoder(depth, max_sequences=rows)
    served.submit(*(pooled(str(at), range(1, length + 1), MEAN) for at, length in enumerate(lengths)))
    served.finish()
    assert sorted(count for step in whole_prompts(served) for count in step) == sorted(lengths)
    assert all(sum(step) <= 16 and len(step) <= rows for step in whole_prompts(served))
    assert {answer.reason for answer in served.answers.values()} == {"stop"}


def test_without_memory_an_encoder_takes_smaller_steps_and_gives_up_a_lone_prompt():
    served = encoder()
    served.submit(pooled("a", range(1, 9), MEAN), pooled("b", range(1, 9), MEAN))
    scheduler = served.scheduler
    plan = scheduler.plan(1.0)
    assert [chunk.num_tokens for chunk in plan.chunks] == [8, 8]
    failed = StepFailure(step=plan.step, message="no memory", lacks_memory=True)
    assert scheduler.fail_running(failed, 2.0) == ()
    plan = scheduler.plan(3.0)
    assert [chunk.num_tokens for chunk in plan.chunks] == [8]
    (gone,) = scheduler.fail_running(StepFailure(step=plan.step, message="no memory", lacks_memory=True), 4.0)
    assert (gone.finish_reason, gone.message) == ("error", "no memory")
    plan = scheduler.plan(5.0)
    assert [chunk.num_tokens for chunk in plan.chunks] == [8], "beyond what fitted, since it cannot be less"
