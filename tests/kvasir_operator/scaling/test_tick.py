"""Whole ticks: what each mode decides and starts from, and replicas and gateways that say what cannot be true."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvasir_api.autoscaling import Autoscaling
from kvasir_api.state import (
    DecodeTotals,
    KvState,
    MeasuredRates,
    RequestTotals,
    RuntimeState,
    ServedTotals,
    ServiceDemand,
    TtftForecast,
)
from kvasir_operator.scaling.decide import ScalingState
from kvasir_operator.scaling.tick import TickInputs, as_json, tick
from kvasir_operator.scaling.window import EMPTY, ScaledReplica

BUSY = RuntimeState(phase="ready", kv=KvState(capacity_tokens=1000, pinned_tokens=950), running=8)
INPUTS = TickInputs(at=10.0, pods=(ScaledReplica(uid="a", name="a", reading=BUSY),))


@pytest.mark.parametrize(
    ("mode", "wanted", "before"), [("Active", 2, 1), ("Advisory", 2, 1), ("Paused", 1, 1), ("External", 3, 3)]
)
def test_modes(mode, wanted, before):
    spec, state = Autoscaling(mode=mode), ScalingState(wanted=1, since=0.0)
    result = tick(spec, EMPTY, state, INPUTS, by_hand=3)
    assert result.decision is not None
    assert (result.state.wanted, result.decision.before, result.decision.raw) == (wanted, before, 2)


def test_without_autoscaling_the_load_is_watched_and_nothing_is_decided():
    result = tick(None, EMPTY, ScalingState(wanted=1, since=0.0), INPUTS, by_hand=3)
    assert result.decision is None
    assert (result.state.wanted, result.state.since, len(result.window.samples)) == (3, 10.0, 1)


SPEC = Autoscaling(max_replicas=100, ttft_milliseconds=2_000, itl_milliseconds=40)
TICKS = 60


def honest(number):
    """A replica that takes three requests a second, each of 500 tokens and 500 more, for ten seconds."""
    came = 1_000 + 6 * number
    return RuntimeState(
        instance="a",
        kv=KvState(capacity_tokens=100_000, pinned_tokens=30_000, free_tokens=70_000),
        running=30,
        max_sequences=64,
        max_model_len=4096,
        totals=RequestTotals(
            arrivals=came, completions=came - 30, uncached_prompt_tokens=500 * came, generation_tokens=500 * came
        ),
        rates=MeasuredRates(prefill_tokens_per_s=8_000.0, decode_step_s=0.02),
        decoded=DecodeTotals(steps=100 * number, seconds=2.0 * number, rows=3_000 * number),
    )


def decisions(lie):
    """Of a minute and another one. lie: what the first of three replicas says, of what it should and of the tick."""
    window, state, found = EMPTY, ScalingState(wanted=3, since=0.0), []
    for number in range(TICKS):
        said = (lie(honest(number), number), honest(number), honest(number))
        pods = tuple(ScaledReplica(uid=str(i), name=f"pod-{i}", reading=reading) for i, reading in enumerate(said))
        inputs = TickInputs(at=1_000.0 + 2.0 * number, pods=pods, cold_starts_s=(30.0,))
        result = tick(SPEC, window, state, inputs, by_hand=3)
        window, state = result.window, result.state
        found.append((result.decision, window.samples[-1].contradictions))
    return found


def totals(reading, **more):
    counted = {name: getattr(reading.totals, name) + count for name, count in more.items()}
    return structs.replace(reading, totals=structs.replace(reading.totals, **counted))


LIES = {
    "arrivals": lambda said, i: totals(said, arrivals=10**9 * i, completions=10**9 * i),
    "arrivals-once": lambda said, i: totals(said, arrivals=10**9, completions=10**9) if i > 30 else said,
    "output": lambda said, i: totals(said, generation_tokens=10**12 * i),
    "output-once": lambda said, i: totals(said, generation_tokens=10**12) if i > 30 else said,
    "prompts": lambda said, i: totals(said, uncached_prompt_tokens=10**6) if i > 30 else said,
    "queue": lambda said, i: structs.replace(said, waiting=10**6, waiting_uncached_tokens=10**9),
    "running": lambda said, i: structs.replace(said, running=10**9, max_sequences=0),
    "negative": lambda said, i: structs.replace(said, running=-1),
    "restarts": lambda said, i: structs.replace(totals(said, arrivals=10**6, completions=10**6), instance="ab"[i % 2]),
    "falls": lambda said, i: totals(said, arrivals=-900 * (i % 2), completions=-900 * (i % 2)),
    "speed": lambda said, i: structs.replace(said, rates=MeasuredRates(prefill_tokens_per_s=5e-324)),
    "no-speed": lambda said, i: structs.replace(said, rates=MeasuredRates(prefill_tokens_per_s=float("nan"))),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_a_replica_that_lies_adds_at_most_one_and_is_named(lie):
    usual = max(decision.replicas for decision, _ in decisions(lambda said, _: said))
    found = decisions(lie)
    assert max(decision.replicas for decision, _ in found) <= usual + 1
    assert {name for _, contradictions in found for name, _ in contradictions} == {"pod-0"}


def test_steps_that_take_longer_than_time_passes_add_at_most_one():
    """The sums of a replica's steps are no contradiction by themselves: what cannot have passed is not used."""

    def slow(said, number):
        return structs.replace(
            said, decoded=DecodeTotals(steps=100 * number, seconds=60.0 * number, rows=3_000 * number)
        )

    assert max(decision.replicas for decision, _ in decisions(slow)) <= 4


ODD = st.sampled_from([0, 1, 7, 4096, 10**6, 10**9, 2**53, 2**53 + 1, 2**63 - 1, -1, -(10**9)])
ODD_REAL = st.sampled_from([0.0, 5e-324, 1e-100, 1e-3, 1.0, 1e6, 1e15, 1e300, -1.0, float("nan"), float("inf")])
PARTS = {
    "kv": KvState,
    "totals": RequestTotals,
    "served": ServedTotals,
    "rates": MeasuredRates,
    "decoded": DecodeTotals,
    "ttft": TtftForecast,
}
GAUGES = ("running", "waiting", "waiting_uncached_tokens", "max_sequences", "max_model_len")


def numbers(struct):
    """Some of a document's numbers, replaced by odd ones."""
    kinds = {name: type(value) for name, value in structs.asdict(struct()).items()}
    return st.fixed_dictionaries(
        {}, optional={name: ODD if kind is int else ODD_REAL for name, kind in kinds.items() if kind in (int, float)}
    )


READINGS = st.tuples(
    st.fixed_dictionaries({}, optional={name: numbers(struct) for name, struct in PARTS.items()}),
    st.fixed_dictionaries({}, optional=dict.fromkeys(GAUGES, ODD)),
)
GATEWAY = numbers(lambda: ServiceDemand(namespace="default", name="service"))


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    said=st.lists(st.tuples(READINGS, GATEWAY, st.sampled_from([1e-9, 2.0, 60.0, 700.0])), min_size=2, max_size=8),
    spec=st.sampled_from([SPEC, Autoscaling(), Autoscaling(min_replicas=0, itl_milliseconds=1)]),
)
def test_no_reading_stops_a_tick(said, spec):
    """Each is taken or refused, and a decision is written down."""
    window, state, at = EMPTY, ScalingState(wanted=1, since=0.0), 0.0
    for number, ((parts, gauges), gateway, after_s) in enumerate(said):
        at, plain = at + after_s, honest(number)
        odd = {name: structs.replace(getattr(plain, name), **changed) for name, changed in parts.items()}
        liar = ScaledReplica(uid="0", name="pod-0", reading=structs.replace(plain, **odd, **gauges))
        pods = (liar, ScaledReplica(uid="1", name="pod-1", reading=plain))
        demand = structs.replace(ServiceDemand(namespace="default", name="service"), **gateway)
        result = tick(spec, window, state, TickInputs(at=at, pods=pods, gateways=(demand,)), by_hand=1)
        window, state = result.window, result.state
        assert result.decision is not None
        assert as_json("default/service", at, result.decision)["replicas"] == state.wanted
