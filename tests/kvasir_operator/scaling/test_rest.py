"""A service in which nothing happens is looked at rarely, and decided for as if it had been looked at each time."""

import msgspec
import pytest
from msgspec.structs import replace

from kvasir_api.autoscaling import Autoscaling
from kvasir_api.state import KvState, MeasuredRates, RequestTotals, RuntimeState, ServedTotals, ServiceDemand
from kvasir_operator.scaling.decide import ScalingState
from kvasir_operator.scaling.rest import due, rests
from kvasir_operator.scaling.tick import TickInputs, tick
from kvasir_operator.scaling.window import EMPTY, ScaledReplica

SPEC = Autoscaling(min_replicas=1, max_replicas=8)
SCHEDULED = Autoscaling.model_validate(
    {"schedules": [{"start": "08:00", "durationMinutes": 60, "timeZone": "UTC", "minReplicas": 3}]}
)
CALM = RuntimeState(
    phase="ready",
    kv=KvState(capacity_tokens=1000, free_tokens=1000),
    max_sequences=8,
    rates=MeasuredRates(prefill_tokens_per_s=500.0),
    totals=RequestTotals(arrivals=90, completions=90, uncached_prompt_tokens=900, generation_tokens=900),
)
GATEWAY = ServiceDemand(namespace="default", name="s", requests=9, last_request_age_s=60.0)


def read(at, reading=CALM, *, gateway=GATEWAY, **fields):
    pods = (ScaledReplica(uid="a", name="a", reading=reading, **fields),) if reading is not None else ()
    return TickInputs(at=at, pods=pods, gateways=(gateway,))


LOOKED = read(0.0)
DECIDED = tick(SPEC, EMPTY, ScalingState(wanted=1, since=-600.0), LOOKED, by_hand=1).decision


def ticks(now, *, looked=LOOKED, rested=None, spec=SPEC, decision=DECIDED):
    return due(looked, rested, now, spec=spec, decision=decision)


def with_(**fields):
    return msgspec.structs.replace(CALM, **fields)


def test_where_nothing_happens_no_tick_is_needed_for_a_while():
    alive = with_(sequence_number=7, heartbeat_age_s=0.4)
    later = ServiceDemand(namespace="default", name="s", requests=9, last_request_age_s=62.0)
    assert ticks(read(2.0, alive, gateway=later)) == ()
    assert ticks(read(2.0, alive), spec=None, decision=None) == ()
    assert ticks(read(58.0, alive)) == ()
    assert ticks(at_last := read(60.0, alive)) == (at_last,)


@pytest.mark.parametrize(
    "now",
    [
        pytest.param(read(4.0, with_(running=1)), id="a request runs"),
        pytest.param(read(4.0, with_(waiting=1)), id="a request waits"),
        pytest.param(read(4.0, with_(totals=RequestTotals(arrivals=91, completions=91))), id="one came and ended"),
        pytest.param(read(4.0, with_(served=ServedTotals(refused=1))), id="one was refused"),
        pytest.param(read(4.0, with_(phase="draining")), id="it drains"),
        pytest.param(read(4.0, with_(stalled_s=3.0)), id="its engine stands still"),
        pytest.param(read(4.0, fresh=False), id="it does not answer"),
        pytest.param(read(4.0, serving=False), id="it takes no requests"),
        pytest.param(read(4.0, prefill=True), id="it has the role of prompts"),
        pytest.param(read(4.0, None), id="it is gone"),
        pytest.param(
            read(4.0, gateway=ServiceDemand(namespace="default", name="s", requests=10)), id="a gateway was asked"
        ),
        pytest.param(
            read(4.0, gateway=ServiceDemand(namespace="default", name="s", requests=9, held=1)),
            id="a gateway holds one",
        ),
        pytest.param(replace(read(4.0), missing_gateways=("g",)), id="a gateway does not answer"),
        pytest.param(replace(read(4.0), unplaced_s=2.0), id="a replica has no node"),
    ],
)
def test_what_happens_ends_the_rest_with_what_was_read_until_then(now):
    rested = read(2.0)
    assert ticks(now, rested=rested) == (rested, now)
    assert ticks(now) == (now,)


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        pytest.param(SCHEDULED, {}, id="a schedule"),
        pytest.param(SPEC, {"replicas": 2}, id="a new count"),
        pytest.param(SPEC, {"limited_by": "window"}, id="a replica that leaves soon"),
        pytest.param(SPEC, {"limited_by": "activity"}, id="zero that comes soon"),
    ],
)
def test_a_decision_that_time_moves_is_taken_each_time(spec, fields):
    assert ticks(now := read(2.0), spec=spec, decision=replace(DECIDED, **fields)) == (now,)


@pytest.mark.parametrize(
    ("looked", "at", "gateway", "spec", "fields", "want"),
    [
        pytest.param(LOOKED, 58.0, GATEWAY, SPEC, {}, True, id="nothing happens"),
        pytest.param(LOOKED, 58.0, GATEWAY, None, {}, True, id="without autoscaling"),
        pytest.param(LOOKED, 60.0, GATEWAY, SPEC, {}, False, id="it has rested for long"),
        pytest.param(read(0.0, with_(running=1)), 2.0, GATEWAY, SPEC, {}, False, id="a request runs"),
        pytest.param(
            read(0.0, with_(kv=KvState(capacity_tokens=1000, pinned_tokens=1000))),
            2.0,
            GATEWAY,
            SPEC,
            {},
            False,
            id="pins",
        ),
        pytest.param(read(0.0, fresh=False), 2.0, GATEWAY, SPEC, {}, False, id="a pod does not answer"),
        pytest.param(
            replace(LOOKED, missing_gateways=("g",)), 2.0, GATEWAY, SPEC, {}, False, id="a gateway was silent"
        ),
        pytest.param(LOOKED, 2.0, msgspec.structs.replace(GATEWAY, requests=10), SPEC, {}, False, id="it was asked"),
        pytest.param(LOOKED, 2.0, GATEWAY, SCHEDULED, {}, False, id="a schedule"),
        pytest.param(LOOKED, 2.0, GATEWAY, SPEC, {"limited_by": "window"}, False, id="a replica that leaves soon"),
    ],
)
def test_the_quick_look_says_what_the_long_one_says(looked, at, gateway, spec, fields, want):
    decision = replace(DECIDED, **fields)
    assert rests(looked, [gateway], at=at, spec=spec, decision=decision) is want
    now = replace(looked, at=at, gateways=(gateway,), missing_gateways=())
    if not looked.missing_gateways:
        assert (ticks(now, looked=looked, spec=spec, decision=decision) == ()) is want


def test_another_spec_is_decided_for_at_once():
    assert ticks(now := read(2.0), looked=None) == (now,)


def load(at):
    """Ten minutes of nothing, then two requests a second that run for twenty seconds."""
    came = max(0, int(2 * (at - 600)))
    ended = max(0, came - 40)
    return with_(
        sequence_number=int(at),
        running=min(8, came - ended),
        waiting=max(0, came - ended - 8),
        kv=KvState(capacity_tokens=1000, pinned_tokens=20 * (came - ended), free_tokens=1000 - 20 * (came - ended)),
        totals=RequestTotals(
            arrivals=90 + came,
            completions=90 + ended,
            uncached_prompt_tokens=900 + 10 * came,
            generation_tokens=900 + 10 * came,
        ),
    )


def one(at):
    return read(at, load(at))


def counts(reads=one, *, resting, spec=SPEC, ticks=340, tick_s=2.0):
    """Replicas by time, and how many ticks that took."""
    window, state, looked, rested, decision = EMPTY, ScalingState(wanted=1, since=-600.0), None, None, None
    found, taken = {}, 0
    for number in range(ticks):
        now = reads(tick_s * number)
        made = due(looked, rested, now, spec=spec, decision=decision) if resting else (now,)
        looked, rested = (now, None) if made else (looked, now)
        for inputs in made:
            done = tick(spec, window, state, inputs, by_hand=1)
            window, state, decision = done.window, done.state, done.decision
        found[now.at] = state.wanted
        taken += len(made)
    return found, taken


def test_a_rest_delays_no_replica_by_more_than_a_tick():
    each, all_ticks = counts(resting=False)
    few, ticks_taken = counts(resting=True)
    for wanted in sorted(set(each.values())):
        first, later = (min(at for at, count in found.items() if count >= wanted) for found in (each, few))
        assert later - first <= 2.0
    assert max(each.values()) > 1
    assert ticks_taken < all_ticks / 3


def two_until_30(at):
    """One replica is full and so there is a second, until from one moment to the next there is nothing to do."""
    full = with_(sequence_number=int(at), running=8, kv=KvState(capacity_tokens=1000, pinned_tokens=950))
    now = read(at, with_(sequence_number=int(at)) if at >= 30 else full)
    second = ScaledReplica(uid="b", name="b", reading=with_(sequence_number=int(at)))
    return replace(now, pods=(*now.pods, second)) if at >= 10 else now


@pytest.mark.parametrize("tick_s", [0.25, 1.0, 2.0])
def test_a_rest_waits_until_the_load_of_past_ticks_is_forgotten(tick_s):
    spec = Autoscaling.model_validate({"scaleDown": {"windowSeconds": 3, "percent": 100, "periodSeconds": 1}})
    reads = {"spec": spec, "ticks": int(85 / tick_s), "tick_s": tick_s}
    each, all_ticks = counts(two_until_30, resting=False, **reads)
    few, ticks_taken = counts(two_until_30, resting=True, **reads)
    assert few == each
    assert (each[28.0], each[80.0]) == (2, 1)
    assert ticks_taken < all_ticks * 3 / 4
