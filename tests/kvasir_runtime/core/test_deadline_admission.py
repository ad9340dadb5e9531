"""Requests with an objective for their first token, and a queue bounded in seconds, alone and under overload."""

import functools

import pytest

from fakes.overload import Callers, capacity, simulated
from fakes.serving import request, serving
from kvasir_api.openai_errors import OVERLOADED, TTFT_UNREACHABLE
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.ttft_predictor import StepLoad
from kvasir_runtime.wire import EngineRequest, SamplingConfig

ROWS = 16
OBJECTIVE_S = 2.0


@functools.cache
def full_load():
    """Calls per second."""
    return capacity(ROWS)


def forecast(engine):
    return engine.scheduler.report(RuntimeState()).ttft


def under(load, *, seconds=60.0, max_retries=0):
    """An engine after a load in parts of its capacity, and its callers, all with an objective."""
    engine = simulated(max_sequences=ROWS)
    callers = Callers(engine, ttft_s=OBJECTIVE_S, max_retries=max_retries)
    callers.load(load * full_load(), 0.0, seconds)
    engine.run(until=seconds + 20.0)
    return engine, callers


@pytest.mark.parametrize(("prompts", "most_wrong"), [((50, 350), 0.02), ((100, 1500), 0.04)])
def test_few_are_refused_wrongly_or_late_where_prompts_are_the_bottleneck(prompts, most_wrong):
    """At twice the load, with rows to spare: short prompts pass long ones, before and after these have rows."""
    calls = {"prompts": prompts, "mean_answer": 10}
    engine = simulated(max_sequences=4 * ROWS)
    callers = Callers(engine, ttft_s=OBJECTIVE_S, max_retries=0, **calls)
    callers.load(2.0 * capacity(4 * ROWS, **calls), 0.0, 120.0)
    engine.run(until=140.0)
    found = forecast(engine)
    assert found.calibrated
    assert found.rechecked == found.refused > 200
    answered = [call for call in callers.between(10.0, 120.0) if call.succeeded]
    assert found.wrongly_refused <= most_wrong * found.rechecked
    assert sum(not call.was_in_time for call in answered) <= 0.08 * len(answered)


def test_objectives_count_where_rows_are_the_bottleneck_and_no_step_is_ever_full_of_prompts():
    calls = {"prompts": (4, 8), "mean_answer": 200}
    engine = simulated(max_sequences=4)
    callers = Callers(engine, ttft_s=OBJECTIVE_S, max_retries=0, **calls)
    callers.load(2.0 * capacity(4, **calls), 0.0, 300.0)
    engine.run(until=400.0)
    found = forecast(engine)
    assert found.calibrated
    assert found.refused > 20


@functools.cache
def goodput(load):
    """Answers in time per second, once rates are measured."""
    _, callers = under(load)
    return sum(call.was_in_time for call in callers.between(10.0, 60.0)) / 50.0


def test_at_twice_the_load_few_are_refused_wrongly_and_few_are_late():
    engine, callers = under(2.0, seconds=120.0)
    found = forecast(engine)
    assert found.calibrated
    assert found.refused > 200
    assert found.rechecked == found.refused
    assert found.wrongly_refused <= 0.02 * found.rechecked
    answered = [call for call in callers.between(10.0, 120.0) if call.succeeded]
    assert sum(not call.was_in_time for call in answered) <= 0.05 * len(answered)


def test_three_times_the_load_does_not_lower_the_goodput():
    assert goodput(3.0) >= 0.9 * max(goodput(load) for load in (0.8, 1.0, 1.5, 3.0))


@pytest.mark.parametrize(("objective_s", "in_time"), [(OBJECTIVE_S, True), (0.0, False)])
def test_a_storm_is_over_when_it_is_over(objective_s, in_time):
    """Five times the load for a minute, then half of it: 30 s later calls succeed, with the retries of all before."""
    engine = simulated(max_sequences=ROWS)
    callers = Callers(engine, ttft_s=objective_s)
    for load, start, end in ((0.8, 0.0, 20.0), (5.0, 20.0, 80.0), (0.5, 80.0, 150.0)):
        callers.load(load * full_load(), start, end)
    engine.run(until=250.0)
    calls = callers.between(110.0, 150.0)
    assert len(calls) > 100
    assert sum(call.succeeded for call in calls) >= 0.99 * len(calls)
    if in_time:
        assert sum(call.was_in_time for call in calls) >= 0.99 * len(calls)


def test_a_refusal_says_by_how_much_it_would_be_late():
    engine, callers = under(3.0, seconds=30.0)
    del callers
    refusals = []
    engine.submit(200, 10, lambda _: None)
    for _ in range(200):
        engine.submit(200, 10, refusals.append, ttft_s=OBJECTIVE_S)
    late = [output for output in refusals if output.code == TTFT_UNREACHABLE]
    assert late
    assert all(output.finish_reason == "error" and not output.token_ids for output in late)
    queue_s = forecast(engine).queue_s
    assert late[-1].retry_after_s == pytest.approx(queue_s - OBJECTIVE_S, abs=1.5)


def test_an_idle_engine_takes_what_it_cannot_serve_in_time():
    engine, _ = under(3.0, seconds=30.0)
    assert forecast(engine).calibrated
    heard = []
    engine.submit(300, 3, heard.append, ttft_s=0.001)
    engine.run(until=engine.now + 10.0)
    assert [output.finish_reason for output in heard] == [None, None, "stop"]


def test_nothing_is_refused_while_predictions_are_not_calibrated():
    """The first burst: nothing was measured yet. Each is answered, however late."""
    engine = simulated(max_sequences=ROWS)
    callers = Callers(engine, ttft_s=0.01, max_retries=0)
    callers.load(200.0, 0.0, 0.1)
    engine.run(until=0.2)
    found = forecast(engine)
    assert (found.calibrated, found.refused) == (False, 0)
    assert len(callers.calls) > 10


def test_the_queue_is_bounded_in_seconds_once_predictions_are_true():
    engine = simulated(max_sequences=ROWS, max_waiting_s=5.0)
    callers = Callers(engine, max_retries=0)
    callers.load(3.0 * full_load(), 0.0, 60.0)
    engine.run(until=60.0)
    assert forecast(engine).queue_s == pytest.approx(5.0, abs=1.5)
    assert {code for call in callers.calls for code in call.codes} == {OVERLOADED}
    engine.run(until=80.0)
    waits = [call.first_at - call.asked_at for call in callers.between(40.0, 60.0) if call.first_at]
    assert max(waits) < 8.0


def test_a_burst_behind_one_prefix_waits_only_as_long_as_that_takes_once():
    engine = simulated(max_sequences=ROWS, max_waiting_s=5.0)
    callers = Callers(engine, max_retries=0, prompts=(1000, 2000))
    callers.load(0.5 * capacity(ROWS, prompts=(1000, 2000)), 0.0, 60.0)
    engine.run(until=90.0)
    assert forecast(engine).calibrated
    scheduler, prefix, outputs = engine.scheduler, tuple(range(9_000, 12_000)), []
    for number in range(8 * ROWS):
        burst = EngineRequest(
            request_id=f"burst{number}", prompt=(*prefix, number + 1), sampling=SamplingConfig(max_tokens=8)
        )
        outputs.append(scheduler.submit(burst, engine.now))
    assert outputs == [None] * len(outputs)


@pytest.mark.parametrize("shared_tokens", [0, 64])
def test_a_short_prefix_in_common_makes_no_wait_longer(shared_tokens):
    """Where first tokens come in less than half of the time predicted."""
    limits = Limits(
        num_blocks=4096, block_size=4, max_batch_tokens=64, max_sequences=8, max_model_len=8000, max_waiting_s=30.0
    )
    scheduler = Scheduler(limits)
    for _ in range(50):
        scheduler.deadlines._predictor.observe(StepLoad(100, 0, is_full=True, lacks_rows=False), 1.0)
        scheduler.deadlines._predictor.add(10.0, 4.0)
    refused = list[bool]()
    for number in range(4):
        prompt = (5,) * shared_tokens + (number + 6,) * (2000 - shared_tokens)
        one = EngineRequest(request_id=f"r{number}", prompt=prompt, sampling=SamplingConfig(max_tokens=3))
        refused.append(scheduler.submit(one, 0.0) is not None)
    assert refused == [False, False, False, True]


def test_bursts_behind_prefixes_wait_no_longer_than_they_may():
    """Ratios of actual to predicted times know already that prefixes are computed once."""
    engine = simulated(max_sequences=8, max_waiting_s=5.0)
    arrived, waits = dict[str, float](), list[float]()

    def burst(number):
        for one in range(10):
            request_id = f"{number}-{one}"
            arrived[request_id], engine._left[request_id] = engine.now, 8
            prompt = (*range(10_000 + 3_000 * number, 12_500 + 3_000 * number), one + 1)
            made = EngineRequest(request_id=request_id, prompt=prompt, sampling=SamplingConfig(max_tokens=8))
            if engine.scheduler.submit(made, engine.now) is not None:
                del arrived[request_id]

    def look():
        for request_id in [one for one in arrived if one in engine.scheduler._running]:
            waits.append(engine.now - arrived.pop(request_id))

    for number in range(150):
        engine.at(0.4 * number, functools.partial(burst, number))
    for number in range(700):
        engine.at(0.1 * number, look)
    engine.run(until=75.0)
    assert forecast(engine).calibrated
    assert max(waits[len(waits) // 3 :]) < 8.0
    assert len(arrived) < 60


def submitted(scheduler, number, *, prompt_tokens=40, admitted=False):
    return scheduler.submit(
        EngineRequest(
            request_id=f"r{number}",
            prompt=(number + 1,) * prompt_tokens,
            sampling=SamplingConfig(max_tokens=8),
            admitted=admitted,
        ),
        0.0,
    )


def test_the_queue_is_bounded_in_tokens():
    limits = Limits(
        num_blocks=64, block_size=16, max_batch_tokens=64, max_sequences=4, max_model_len=512, max_waiting_tokens=100
    )
    scheduler = Scheduler(limits)
    assert submitted(scheduler, 0, prompt_tokens=200) is None  # nothing waits: it is taken, however long
    assert scheduler.plan(0.0) is not None
    assert [submitted(scheduler, number) for number in (1, 2)] == [None, None]
    refused = submitted(scheduler, 3)
    assert refused is not None
    assert (refused.code, refused.finish_reason) == (OVERLOADED, "error")
    assert "120 prompt tokens" in refused.message
    assert submitted(scheduler, 4, admitted=True) is None


def test_what_a_request_that_left_would_have_taken_is_no_queue():
    """Its client hangs up while nothing else is to do, so no plan follows that would find it gone."""
    engine, _ = under(3.0, seconds=30.0)
    names = [engine.submit(4_000, 10, lambda _: None) for _ in range(12)]
    engine.step()
    assert forecast(engine).queue_s > 5.0
    for name in names:
        engine.abort(name)
    assert forecast(engine).queue_s < 0.2
    heard = []
    engine.submit(1_000, 3, heard.append, ttft_s=0.001)
    engine.run(until=engine.now + 30.0)
    assert heard[-1].finish_reason == "stop"


def test_choices_of_one_request_are_judged_once():
    engine, _ = under(3.0, seconds=30.0)
    refused, heard = [], []
    for _ in range(40):
        engine.submit(4_000, 3, refused.append)
    assert {output.code for output in refused} == {OVERLOADED}
    for _ in range(3):
        engine.submit(4_000, 3, heard.append, ttft_s=0.1, admitted=True)
    engine.run(until=engine.now + 500.0)
    assert sum(output.finish_reason == "stop" for output in heard) == 3
    assert not any(output.code for output in heard)


def test_what_a_client_leaves_is_not_refused_later():
    served = serving(max_sequences=1)
    served.submit(request("a", [1, 2, 3], max_tokens=30), request("b", [2, 3, 4], ttft_s=3.0))
    served.step()
    served.scheduler.abort("b", served.now)
    served.finish()
    assert served.answers["b"].reason == ""


def test_those_that_are_refused_while_they_wait_are_counted_apart():
    """They used no time of the engine, so a measure of the load leaves them out."""
    engine, callers = under(2.0)
    totals, ttft = engine.scheduler.report(RuntimeState()).totals, forecast(engine)
    assert 0 < ttft.expired <= totals.aborts
    assert ttft.expired < ttft.refused
    assert totals.arrivals + ttft.refused - ttft.expired == len(callers.calls)
