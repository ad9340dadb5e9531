"""Prompts that are pooled: which positions, what ends them, and what they may share; the fake runner checks blocks."""

import struct

import pytest

from fakes.runner import FakeRunner
from fakes.serving import serving
from kvasir_api.state import RuntimeState
from kvasir_runtime.wire import EngineRequest, PoolingConfig, SamplingConfig

LAST, MEAN = PoolingConfig(kind="last"), PoolingConfig(kind="mean")


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
    events = served.scheduler.fail_running("broken", 1.0)
    assert [event.finish_reason for event in events] == ["error"]


def test_it_has_nothing_left_to_generate_and_takes_no_ids_from_outside():
    served = serving(max_batch_tokens=6)
    served.submit(pooled("a", range(1, 21), MEAN))
    served.step()
    assert served.scheduler.report(RuntimeState()).remaining_tokens == 0
    served.scheduler.inject("a", (5, 5))
    served.finish()
    assert len(served.answers["a"].pooled) == 4 * 20
