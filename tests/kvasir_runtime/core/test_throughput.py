"""Measured speed: which steps count for what, and how fast the past is forgotten."""

import pytest

from kvasir_api.cache_groups import LayerAttention
from kvasir_api.layer_kinds import LayerKind
from kvasir_api.model_shape import ModelShape
from kvasir_api.roofline import StepWork
from kvasir_api.state import DecodeTotals, WorkTotals
from kvasir_runtime.core.plan import Chunk, SampledTokens, StepPlan, StepResults
from kvasir_runtime.core.throughput import Throughput


def plan(*num_tokens, start=0):
    return StepPlan(
        step=1,
        chunks=tuple(
            Chunk(row=row, start=start, num_tokens=count, samples=True) for row, count in enumerate(num_tokens)
        ),
    )


@pytest.mark.parametrize(
    ("chunks", "prefill", "decode"),
    [
        ((100,), 200.0, 0.0),
        ((1, 1, 1), 0.0, 0.5),
        ((60, 1, 1), 124.0, 0.0),
        ((2, 1, 1, 1, 1), 0.0, 0.0),
        ((), 0.0, 0.0),
    ],
)
def test_a_step_counts_for_what_bound_it(chunks, prefill, decode):
    speed = Throughput()
    speed.observe(plan(*chunks), 0.5)
    assert speed.rates.prefill_tokens_per_s == pytest.approx(prefill)
    assert speed.rates.decode_step_s == pytest.approx(decode)


def test_the_past_fades():
    speed = Throughput()
    for _ in range(10):
        speed.observe(plan(1), 1.0)
    for _ in range(2000):
        speed.observe(plan(1), 0.1)
    assert speed.rates.decode_step_s == pytest.approx(0.1, rel=0.01)


def test_a_clock_that_stands_still_is_ignored():
    speed = Throughput()
    speed.observe(plan(100), 0.0)
    assert speed.rates.prefill_tokens_per_s == 0.0


def test_steps_that_decode_are_summed_with_what_they_read():
    speed = Throughput()
    speed.observe(plan(1, 1, start=9), 0.5)
    speed.observe(plan(1, start=99), 0.25)
    speed.observe(plan(100, 1), 2.0)
    speed.observe(plan(), 2.0)
    assert speed.decoded == DecodeTotals(steps=2, seconds=0.75, rows=3, kv_tokens=120)


@pytest.mark.parametrize("known", [1, 5])
def test_a_step_with_drafts_counts_as_the_steps_that_its_tokens_would_take(known):
    """Two sequences got four tokens in half a second: a token of each takes a quarter. known: a state reads more again,
    which is no prompt.
    """
    chunks = (
        Chunk(row=0, start=9, num_tokens=known + 3, samples=True, drafts=(1, 2, 3)),
        Chunk(row=1, start=9, num_tokens=1, samples=True),
    )
    results = StepResults(step=1, sampled=(SampledTokens(0, (1, 2, 9)), SampledTokens(1, (4,))))
    speed = Throughput()
    speed.observe(StepPlan(step=1, chunks=chunks), 0.5, results)
    assert speed.rates.decode_step_s == pytest.approx(0.25)
    assert speed.rates.prefill_tokens_per_s == 0
    assert speed.decoded == DecodeTotals(drafted_steps=2.0, drafted_seconds=0.5, drafted_rows=4)


def test_the_slope_is_what_one_more_sequence_adds():
    speed = Throughput()
    for rows in (1, 4, 9, 4, 2):
        speed.observe(plan(*[1] * rows), 0.010 + 0.002 * rows)
    assert speed.rates.decode_slope_s == pytest.approx(0.002)


def test_there_is_no_slope_of_steps_that_are_alike():
    speed = Throughput()
    for elapsed_s in (0.01, 0.02, 0.03):
        speed.observe(plan(1, 1), elapsed_s)
    assert speed.rates.decode_slope_s == 0.0


def test_a_slope_is_never_negative():
    speed = Throughput()
    for rows in (1, 4, 9):
        speed.observe(plan(*[1] * rows), 0.1 - 0.01 * rows)
    assert speed.rates.decode_slope_s == 0.0


def test_the_stall_is_what_prompts_add_to_steps_that_decode():
    """Two sequences take 14 ms alone. A step with a prompt takes 56 ms: three quarters of it are the prompt's."""
    speed = Throughput()
    speed.observe(plan(100, 1), 1.0)  # nothing is known yet of decoding alone
    assert speed.rates.stall_fraction == 0.0
    for rows in (1, 4, 9):
        speed.observe(plan(*[1] * rows), 0.010 + 0.002 * rows)
    speed.observe(plan(100), 5.0)  # stalls nothing
    speed.observe(plan(100, 1, 1), 0.056)
    assert speed.rates.stall_fraction == pytest.approx(0.75)


def test_work_is_that_of_the_chunks_by_the_sizes_of_the_model():
    """Two layers of one head of 8 numbers, one with a window of 4 tokens; 100 weights, 40 of them the head."""
    shape = ModelShape(
        layers=2, hidden=4, intermediate=4, heads=1, kv_heads=1, head_dim=8, vocabulary=10, max_positions=64,
        parameters=140, active_parameters=140,
        kinds=(LayerKind(30), LayerKind(30, group=1)), pattern="01", head=40, tied=False, dtype="bfloat16",
        attentions=(LayerAttention(), LayerAttention("window", 4)), group_layers=(1, 1),
    )  # fmt: skip
    work = StepWork(shape=shape, weights_bytes=280, table_bytes=80, kv_bytes=32)
    speed = Throughput(work)
    speed.observe(plan(1, 1, start=9), 0.5)
    products, seen = 2 * 2 * 100, 2 * (10 + 4)
    assert speed.work == WorkTotals(seconds=0.5, flops=products + 32 * seen, read_bytes=200 + 32 * seen)
    speed.observe(plan(20, start=10), 2.0)
    assert speed.work.flops - (products + 32 * seen) == 2 * (60 * 20 + 40) + 32 * 20 * (20.5 + 4)
    assert speed.work.read_bytes - (200 + 32 * seen) == 200 + 32 * (30 + 4)
    assert speed.work.seconds == 2.5


def test_without_sizes_only_the_time_is_counted():
    speed = Throughput()
    speed.observe(plan(3), 0.5)
    assert speed.work == WorkTotals(seconds=0.5)
