"""Samples from readings: differences of counters, missing pods, pods that restart or leave."""

from kvasir_api.state import KvState, MeasuredRates, RequestTotals, RuntimeState, ServiceDemand
from kvasir_operator.scaling.window import EMPTY, ScaledReplica, extended


def member(uid, *, arrivals=0, pinned=0, **fields):
    reading = RuntimeState(
        phase="ready",
        kv=KvState(capacity_tokens=1000, pinned_tokens=pinned),
        rates=MeasuredRates(prefill_tokens_per_s=500.0),
        totals=RequestTotals(arrivals=arrivals, completions=arrivals, kv_token_seconds=10.0 * arrivals),
    )
    return ScaledReplica(uid=uid, name=uid, **{"reading": reading, **fields})


def run(*ticks):
    window = EMPTY
    for number, members in enumerate(ticks):
        window = extended(window, members, (), now=2.0 * number)
    return window


def test_first_sight_counts_nothing_and_then_differences():
    window = run([member("a", arrivals=100)], [member("a", arrivals=103)])
    assert [s.arrivals for s in window.samples] == [0, 3]
    assert [s.kv_token_seconds for s in window.samples] == [0.0, 30.0]


def test_a_restarted_pod_counts_from_zero():
    window = run([member("a", arrivals=100)], [member("a", arrivals=4)])
    assert window.samples[-1].arrivals == 4


def test_a_pod_that_left_counts_no_more():
    window = run([member("a", pinned=500), member("b", pinned=300)], [member("a", pinned=500)])
    assert (window.samples[-1].pinned_tokens, window.samples[-1].missing, set(window.counters)) == (500, (), {"a"})


def test_a_silent_pod_is_missing_and_keeps_its_last_gauges():
    window = run([member("a", pinned=500), member("b", pinned=300, fresh=False)])
    assert (window.samples[-1].pinned_tokens, window.samples[-1].missing) == (800, ("b",))


def test_a_pod_that_never_spoke_is_missing():
    window = run([ScaledReplica(uid="a", name="a")])
    assert (window.samples[-1].missing, window.samples[-1].capacity_tokens) == (("a",), 0.0)


def test_draining_pods_add_counters_but_no_gauges():
    window = run([member("a", arrivals=1, serving=False)], [member("a", arrivals=2, pinned=500, serving=False)])
    last = window.samples[-1]
    assert (last.arrivals, last.pinned_tokens, last.serving, last.missing) == (1, 0, 0, ())


def test_sequence_limit_with_a_queue_tells_what_a_replica_can_hold():
    full = RuntimeState(
        phase="ready", kv=KvState(capacity_tokens=1000, pinned_tokens=240), running=8, waiting=3, max_sequences=8
    )
    room = RuntimeState(
        phase="ready", kv=KvState(capacity_tokens=1000, pinned_tokens=90), running=2, waiting=3, max_sequences=8
    )
    window = run([ScaledReplica(uid="a", name="a", reading=full), ScaledReplica(uid="b", name="b", reading=room)])
    assert window.samples[-1].limit_tokens == 240.0


def test_gateways_add_what_they_hold():
    held = [
        ServiceDemand(namespace="n", name="s", held=2, held_bytes=100),
        ServiceDemand(namespace="n", name="s", held=1),
    ]
    window = extended(EMPTY, [member("a")], held, missing_gateways=("gw",), now=0.0)
    assert (window.samples[-1].held, window.samples[-1].held_bytes, window.samples[-1].missing) == (3, 100, ("gw",))


def test_old_samples_are_forgotten():
    window = extended(EMPTY, [member("a")], (), now=0.0)
    window = extended(window, [member("a")], (), now=601.0)
    assert [s.at for s in window.samples] == [601.0]
