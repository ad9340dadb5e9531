"""What drafts leave of a step's seconds is what the autoscaler and the gateway count with, from one document,
and drafts in vain are a condition of the service."""

import msgspec
import pytest

from fakes import manifests
from fakes.drafter import AlwaysDrafter
from fakes.gateway import pod, service, table
from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from fakes.situations import findings, replica
from kvasir_api.state import RuntimeState
from kvasir_gateway import routing_table
from kvasir_gateway.choose import ChoicePolicy, RequestSize, cost_of
from kvasir_gateway.routing_table import StateReading
from kvasir_operator.scaling.pressure import LEAST_DRAFTED, pressure
from kvasir_operator.scaling.window import EMPTY, ScaledReplica, extended
from kvasir_operator.status.compose import compose

BASE_S, ROW_S = 0.1, 0.02
"""Of a step, and of each of its sequences, whether these have drafts or not."""


def documents(speculation, drafter=None, tokens=100):
    """What a replica reports before and after it has decoded for one stream and for four, and at which second.

    tokens: of each answer.
    """
    runner, now, found = FakeRunner(model=FakeModel(table=(5,))), 0.0, []
    served = serving(runner=runner, speculation=speculation, drafter=drafter, num_blocks=512, max_batch_tokens=128)
    scheduler = served.scheduler

    def report():
        reported = scheduler.report(RuntimeState(phase="ready", max_sequences=8))
        found.append((now, msgspec.json.decode(msgspec.json.encode(reported), type=RuntimeState)))

    report()
    for streams in (1, 4):
        for number in range(streams):
            assert scheduler.submit(request(f"{streams}-{number}", [1, 2], max_tokens=tokens), now) is None
        while (plan := scheduler.plan(now)) is not None:
            elapsed_s = BASE_S + ROW_S * len(plan.chunks)
            now, results = now + elapsed_s, runner.collect(runner.launch(plan))
            scheduler.commit(results, now)
            scheduler.throughput.observe(plan, elapsed_s, results)
    report()
    return found


def window_of(found):
    window = EMPTY
    for now, reading in found:
        window = extended(window, [ScaledReplica(uid="a", name="a", reading=reading)], (), now=now)
    return window


def autoscaler_line(found):
    return window_of(found).step.line


def endpoint(found):
    """The replica as the gateway sees it behind four requests of its own."""
    now, reading = found[-1]
    reads = {"127.0.0.1:8000": StateReading(state=reading, at_s=now)}
    served = table([service("s")], [pod("s", "p")]).services[0]
    (one,) = routing_table.candidates(served, reads, now_s=now, inflight=lambda _: 0, since=lambda *_: (4, 0))
    return one


@pytest.fixture(scope="module")
def plain():
    return documents("off")


@pytest.fixture(scope="module")
def drafted():
    return documents("suffix")


def test_without_drafts_both_have_what_a_step_takes(plain):
    line = autoscaler_line(plain)
    assert line.mean_s == pytest.approx(BASE_S + ROW_S * line.mean_batch)
    assert endpoint(plain).load.decode_slope_s == pytest.approx(ROW_S)


def test_the_autoscaler_counts_with_the_seconds_of_a_token(plain, drafted):
    """A step has several tokens of each sequence, and as many steps of one token each stand for it."""
    assert drafted[-1][1].totals.accepted_tokens > 100
    line, without = autoscaler_line(drafted), autoscaler_line(plain)
    assert 0 < line.mean_s < 0.5 * (BASE_S + ROW_S * line.mean_batch)
    assert line.batch_within(0.1) > without.batch_within(0.1)


def test_the_gateway_counts_with_what_a_sequence_adds_to_the_seconds_of_a_token(plain, drafted):
    ends = [endpoint(found) for found in (drafted, plain)]
    slopes = [end.load.decode_slope_s for end in ends]
    assert 0 < slopes[0] < 0.5 * slopes[1]
    size, policy = RequestSize(prompt_tokens=100, output_tokens=50), ChoicePolicy()
    costs = [cost_of(end, size, uncached_tokens=100, policy=policy) for end in ends]
    assert [cost.decode_s for cost in costs] == pytest.approx([2 * slope * 50 * 4 for slope in slopes])


@pytest.mark.parametrize(("drafter", "tokens", "reason"), [(AlwaysDrafter(), 100, "LowAcceptance"), (None, 300, None)])
def test_drafts_in_vain_are_a_condition_of_the_service(drafter, tokens, reason):
    """The fake model never answers what the drafter guesses; texts that repeat themselves are drafted right."""
    found = documents("suffix", drafter, tokens)
    totals = found[-1][1].totals
    assert totals.drafted_tokens > LEAST_DRAFTED
    acceptance = pressure(window_of(found)).acceptance
    assert acceptance == pytest.approx(totals.accepted_tokens / totals.drafted_tokens)
    obj = manifests.service(generation=3, runtime={"speculation": "suffix"})
    status, _ = compose(findings(replica("ready"), obj=obj, acceptance=acceptance))
    degraded = [(one.status, one.reason) for one in status.conditions if one.type == "Degraded"]
    assert degraded == ([("True", reason)] if reason else [])
