"""Samples from readings: differences of counters, missing pods, pods that restart or leave."""

import pytest

from kvasir_api.state import (
    DecodeTotals,
    KvHostState,
    KvState,
    MeasuredRates,
    RequestTotals,
    RuntimeState,
    ServedTotals,
    ServiceDemand,
    TtftForecast,
)
from kvasir_operator.scaling.arrivals import FAST_S, arrival_rate
from kvasir_operator.scaling.window import EMPTY, LOST_S, LoadGauges, ScaledReplica, extended


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
    assert [s.counts.arrivals for s in window.samples] == [0, 3]
    assert [s.counts.ended for s in window.samples] == [0, 3]


def test_a_restarted_pod_counts_from_zero():
    window = run([member("a", arrivals=100)], [member("a", arrivals=4)])
    assert window.samples[-1].counts.arrivals == 4


def test_a_pod_that_restarted_and_was_busy_since_counts_from_zero():
    readings = [
        RuntimeState(
            instance=name,
            totals=RequestTotals(arrivals=count, completions=count),
            decoded=DecodeTotals(steps=count, seconds=0.01 * count, rows=count),
        )
        for name, count in (("one", 4), ("two", 9))
    ]
    window = run(*[[ScaledReplica(uid="a", name="a", reading=reading)] for reading in readings])
    assert window.samples[-1].counts.arrivals == 9
    assert window.step.weight == 0


def test_a_pod_that_left_counts_no_more():
    window = run([member("a", pinned=500), member("b", pinned=300)], [member("a", pinned=500)])
    assert (window.samples[-1].gauges.pinned_tokens, window.samples[-1].missing, set(window.records)) == (
        500,
        (),
        {"a"},
    )


def computing(arrivals, peers, *, running=0, prefill=True):
    """A replica that has computed prompts of 100 tokens, most of them for others."""
    totals = RequestTotals(
        arrivals=arrivals,
        completions=arrivals - 2 * running,
        uncached_prompt_tokens=100 * arrivals,
        generation_tokens=peers + 50 * (arrivals - peers),
        prefix_query_tokens=100 * arrivals,
    )
    reading = RuntimeState(
        phase="ready",
        kv=KvState(capacity_tokens=1000, pinned_tokens=100 * running),
        kv_host=KvHostState(peer_prompts=peers),
        running=running,
        waiting=running,
        waiting_uncached_tokens=100 * running,
        totals=totals,
    )
    return ScaledReplica(uid="p", name="p", reading=reading, prefill=prefill)


def test_a_prompt_that_was_handed_over_counts_where_it_is_answered_alone():
    window = run([computing(10, 8), member("a")], [computing(16, 13, running=3), member("a", arrivals=5, pinned=300)])
    counts = window.samples[-1].counts
    assert (counts.arrivals, counts.ended, counts.prompt_tokens) == (1 + 5, 5, pytest.approx(100))
    assert (counts.output_tokens, counts.query_tokens) == (50, pytest.approx(100))
    assert window.last.gauges == LoadGauges(pinned_tokens=300)
    assert (window.last.prefill, window.last.serving) == (1, 2)


@pytest.mark.parametrize(
    ("waiting", "handing_over", "want"),
    [(3, 2, 1), (3, 3, 0), pytest.param(3, 10**9, 0, id="one that lies hides no request of others")],
)
def test_a_request_whose_prompt_another_replica_computes_waits_for_no_place(waiting, handing_over, want):
    """Its prompt still has to be computed."""
    host = KvHostState(handing_over=handing_over)
    reading = RuntimeState(phase="ready", waiting=waiting, waiting_uncached_tokens=900, kv_host=host)
    others = RuntimeState(phase="ready", waiting=2, waiting_uncached_tokens=100)
    gauges = run([member("a", reading=reading), member("b", reading=others)]).last.gauges
    assert (gauges.waiting, gauges.waiting_tokens) == (want + 2, 1000)


def test_a_pod_that_lies_about_prompts_for_others_hides_no_other_load():
    window = run([computing(10, 8), member("a")], [computing(12, 10**9), member("a", arrivals=5)])
    assert window.samples[-1].counts.arrivals == 5
    window = run([computing(10, 8), member("a")], [computing(12, 0), member("a", arrivals=5)])
    assert window.samples[-1].counts.arrivals == 7


def test_a_silent_pod_is_missing_and_keeps_its_last_gauges():
    window = run([member("a", pinned=500), member("b", pinned=300, fresh=False)])
    assert (window.samples[-1].gauges.pinned_tokens, window.samples[-1].missing) == (800, ("b",))


def test_a_pod_that_never_spoke_is_missing():
    window = run([ScaledReplica(uid="a", name="a")])
    assert (window.samples[-1].missing, window.samples[-1].supply) == (("a",), ())


def test_draining_pods_add_counters_but_no_gauges():
    window = run([member("a", arrivals=1, serving=False)], [member("a", arrivals=2, pinned=500, serving=False)])
    last = window.samples[-1]
    assert (last.counts.arrivals, last.gauges.pinned_tokens, last.serving, last.missing) == (1, 0, 0, ())


def gap(silent_s, *, pinned_before, pinned_meanwhile, arrivals=0):
    """Pods a, b and c; c is silent for so long, then speaks again with the arrivals of all that time."""
    window, now = EMPTY, 0.0
    for _ in range(30):
        window = extended(window, [member(uid, pinned=pinned_before) for uid in "abc"], (), now=now)
        now += 2
    while now <= 60 + silent_s:
        others = [member(uid, pinned=pinned_meanwhile) for uid in "ab"]
        window = extended(window, [*others, member("c", pinned=pinned_before, fresh=False)], (), now=now)
        now += 2
    silent = window
    window = extended(window, [*others, member("c", pinned=pinned_before, arrivals=arrivals)], (), now=now)
    return silent, window


def test_load_that_moved_from_a_silent_pod_counts_once():
    silent, _ = gap(60, pinned_before=200, pinned_meanwhile=300)
    assert (silent.samples[-1].gauges.pinned_tokens, silent.samples[-1].missing) == (600, ("c",))


def test_load_of_a_silent_pod_counts_while_it_has_not_moved():
    silent, _ = gap(60, pinned_before=200, pinned_meanwhile=200)
    assert silent.samples[-1].gauges.pinned_tokens == 600


def test_what_was_counted_over_a_gap_enters_at_its_mean_rate():
    _, window = gap(60, pinned_before=200, pinned_meanwhile=200, arrivals=64)
    assert window.samples[-1].counts.arrivals == 2


def test_a_pod_that_is_silent_for_long_is_lost_and_holds_nothing_back():
    silent, returned = gap(LOST_S + 10, pinned_before=200, pinned_meanwhile=300)
    last = silent.samples[-1]
    assert (last.missing, last.lost, last.gauges.pinned_tokens, len(last.supply)) == ((), ("c",), 600, 2)
    assert (returned.samples[-1].lost, returned.samples[-1].gauges.pinned_tokens) == ((), 800)


def test_a_reading_that_cannot_be_is_silence_with_a_name():
    window = run([member("a", pinned=500), member("b", pinned=300)])
    wild = member("b", pinned=10**9)
    window = extended(window, [member("a", pinned=500), wild], (), now=2.0)
    last = window.samples[-1]
    assert (last.gauges.pinned_tokens, last.missing) == (800, ("b",))
    assert last.contradictions == (("b", "1000000000 pinned tokens of 1000"),)


def test_old_ticks_are_joined_and_nothing_of_them_is_lost():
    window = EMPTY
    for tick in range(301):
        window = extended(window, [member("a", arrivals=tick, pinned=7)], (), now=2.0 * tick)
    assert len(window.stretches) <= 95
    assert sum(s.counts.arrivals for s in window.stretches) == pytest.approx(299, abs=5)
    assert sum(s.counts.span_s for s in window.stretches) == pytest.approx(600, abs=12)
    assert sum(s.counts.pinned_s for s in window.stretches) == pytest.approx(7 * 600, rel=0.02)


def test_gateways_add_what_they_hold():
    held = [
        ServiceDemand(namespace="n", name="s", held=2, held_bytes=100),
        ServiceDemand(namespace="n", name="s", held=1),
    ]
    window = extended(EMPTY, [member("a")], held, missing_gateways=("gw",), now=0.0)
    assert (window.samples[-1].held, window.samples[-1].held_bytes, window.samples[-1].missing) == (3, 100, ("gw",))


def stepped(*, steps, seconds, places=0):
    decoded = DecodeTotals(steps=steps, seconds=seconds, rows=4 * steps)
    reading = RuntimeState(phase="ready", decoded=decoded, max_sequences=places)
    return ScaledReplica(uid="a", name="a", reading=reading)


@pytest.mark.parametrize(
    ("before", "after", "weight"),
    [
        (stepped(steps=1_000, seconds=40.0), stepped(steps=1_050, seconds=42.0), 50),
        # read for the first time, after a tick of silence: its whole life is not one tick's
        (ScaledReplica(uid="a", name="a", fresh=False), stepped(steps=1_000_000, seconds=40_000.0), 0),
        # within two seconds there are not so many seconds, nor so many steps
        (stepped(steps=1_000, seconds=40.0), stepped(steps=1_050, seconds=40_000.0), 0),
        (stepped(steps=1_000, seconds=40.0), stepped(steps=1_000_000, seconds=42.0), 0),
        # one step may have begun before the last reading, ten of four seconds cannot
        (stepped(steps=1_000, seconds=40.0), stepped(steps=1_010, seconds=43.2), 10),
        (stepped(steps=1_000, seconds=40.0), stepped(steps=1_010, seconds=80.0), 0),
        # steps without time, which would make a replica take any load
        (stepped(steps=1_000, seconds=40.0), stepped(steps=1_050, seconds=40.0), 0),
        # more sequences than the replica has places for
        (stepped(steps=1_000, seconds=40.0, places=2), stepped(steps=1_050, seconds=42.0, places=2), 0),
    ],
)
def test_steps_count_as_far_as_there_can_be_so_many(before, after, weight):
    assert run([before], [after]).step.weight == weight


def test_steps_are_counted_again_after_a_counter_of_seconds_leapt():
    ticks = [[stepped(steps=1_000 + 50 * i, seconds=2.0 * i + (40_000.0 if i > 1 else 0.0))] for i in range(4)]
    assert run(*ticks).step.weight == pytest.approx(100, rel=0.01)


@pytest.mark.parametrize("leaps", [[2], [2, 3, 4]])
def test_a_leap_of_a_counter_is_silence_with_a_name_until_it_ends(leaps):
    def counted(tick):
        arrivals = 10 + 2 * tick + 10**9 * sum(tick >= leap for leap in leaps)
        return [ScaledReplica(uid="a", name="a", reading=RuntimeState(instance="a", totals=came(arrivals)))]

    window = run(*[counted(tick) for tick in range(7)])
    told = [(s.at, s.contradictions[0][0], s.missing) for s in window.samples if s.contradictions]
    assert told == [(2.0 * leap, "a", ("a",)) for leap in leaps]
    assert sum(s.counts.arrivals for s in window.samples) < 12  # what came besides the leaps, at most


def came(arrivals):
    return RequestTotals(arrivals=arrivals, completions=arrivals)


def test_a_counter_that_leaps_for_minutes_is_of_a_lost_pod():
    ticks = [
        [ScaledReplica(uid="a", name="a", reading=RuntimeState(instance="a", totals=came(10**9 * i)))]
        for i in range(70)
    ]
    assert run(*ticks).samples[-1].lost == ("a",)


def test_a_gateway_that_cannot_be_believed_holds_nothing_and_is_named():
    held = [ServiceDemand(namespace="d", name="s", held=3), ServiceDemand(namespace="d", name="s", held=-9)]
    last = extended(EMPTY, [member("a")], held, now=0.0).samples[-1]
    assert (last.held, last.missing, last.contradictions) == (3, ("a gateway",), (("a gateway", "held is -9"),))


def test_old_samples_are_forgotten():
    window = extended(EMPTY, [member("a")], (), now=0.0)
    window = extended(window, [member("a")], (), now=601.0)
    assert [s.at for s in window.stretches] == [601.0]


@pytest.mark.parametrize(
    ("totals", "served", "expired", "want"),
    [
        pytest.param({}, {"refused": 5}, 0, (0, 0, 5), id="refused at once"),
        pytest.param({"arrivals": 5, "aborts": 5}, {"refused": 5}, 5, (5, 5, 0), id="refused as it waited"),
        pytest.param({}, {"refused": 9, "retried": 6}, 0, (0, 0, 3), id="three requests, each sent three times"),
        pytest.param({"arrivals": 2}, {"retried": 2}, 0, (2, 0, -2), id="taken at the second try"),
        pytest.param({}, {"refused": 10**9}, 0, (0, 0, 0), id="more than a server can refuse"),
        pytest.param({"arrivals": 3}, {"refused": 2, "retried": 10**6}, 0, (3, 0, -3), id="more than came"),
        pytest.param({}, {"refused": 10**9, "retried": 10**9}, 0, (0, 0, 0), id="more of both than there can be"),
    ],
)
def test_a_request_that_was_refused_counts_once(totals, served, expired, want):
    after = RuntimeState(
        instance="a",
        totals=RequestTotals(**totals),
        served=ServedTotals(**served),
        ttft=TtftForecast(expired=expired),
    )
    window = run([member_of(RuntimeState(instance="a"))], [member_of(after)])
    counts = window.samples[-1].counts
    assert (counts.arrivals, counts.expired, counts.refused) == want


def test_no_pod_takes_back_what_others_refused():
    def served(uid, **totals):
        reading = RuntimeState(instance=uid, totals=RequestTotals(arrivals=9), served=ServedTotals(**totals))
        return ScaledReplica(uid=uid, name=uid, reading=reading)

    before = [served("honest"), served("fell", refused=10**6), served("lies")]
    window = run(before, [served("honest", refused=8), served("fell"), served("lies", retried=10**6)])
    assert window.samples[-1].counts.refused == 8


def member_of(reading):
    return ScaledReplica(uid="a", name="a", reading=reading)


def test_what_a_gateway_had_held_and_a_replica_refused_was_held():
    held = (ServiceDemand(namespace="default", name="s", held=9),)
    window = extended(EMPTY, [member_of(RuntimeState(instance="a"))], held, now=0.0)
    after = RuntimeState(instance="a", totals=RequestTotals(arrivals=2), served=ServedTotals(refused=7))
    window = extended(window, [member_of(after)], (), now=2.0)
    assert window.samples[-1].counts.released == 9


def test_what_a_gateway_holds_for_busy_replicas_came_then_and_not_when_a_replica_gets_it():
    def held(number):
        return (ServiceDemand(namespace="default", name="s", held=number),)

    window = extended(EMPTY, [member("a")], held(0), now=0.0)
    found = []
    for now, arrivals, number in ((2.0, 10, 6), (4.0, 20, 6), (6.0, 26, 0), (8.0, 28, 0)):
        window = extended(window, [member("a", arrivals=arrivals)], held(number), now=now)
        found.append(window.samples[-1].counts.came)
    assert found == [16, 10, 0, 2]


def with_gateway(*ticks, phase="ready"):
    """A window whose ticks have the arrivals at one pod, which answers at once, and what a gateway says."""
    window = EMPTY
    for number, (arrivals, served, said) in enumerate(ticks):
        totals = RequestTotals(arrivals=arrivals, completions=arrivals)
        reading = RuntimeState(instance="a", phase=phase, totals=totals, served=ServedTotals(**served))
        demand = ServiceDemand(namespace="default", name="s", gateway="gw", **said)
        window = extended(window, [member_of(reading)], (demand,), now=2.0 * number)
    return window


def came_in(window):
    """In each tick after the first."""
    return [sample.counts.came for sample in window.samples[1:]]


@pytest.mark.parametrize(
    ("later", "want"),
    [
        pytest.param([(4, {"held": 6}), (8, {"held": 6, "shed": 30})], [10, 34], id="beyond a full queue"),
        pytest.param([(4, {"held": 6}), (8, {"expired": 6}), (12, {"expired": 6})], [10, 4, 4], id="held in vain"),
        pytest.param([(4, {"held": 6}), (8, {"abandoned": 6})], [10, 4], id="held until the client left"),
        pytest.param([(0, {"held": 5}), (0, {"held": 5, "expired": 2, "abandoned": 3})], [5, 5], id="as many more"),
        pytest.param([(4, {"held": 6}), (10, {})], [10, 0], id="answered"),
    ],
)  # fmt: skip
def test_what_finds_no_room_at_a_gateway_counts_once_and_when_it_came(later, want):
    assert came_in(with_gateway((0, {}, {}), *((arrivals, {}, said) for arrivals, said in later))) == want


SHED, EXPIRED, REFUSED = {"shed": 6}, {"expired": 6}, {"refused": 6}
AGAIN = {"held_retried": 6}


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(
            [(0, {}, SHED), (0, {}, SHED | AGAIN | {"held": 6}), (6, {}, SHED | AGAIN)],
            id="shed, then held and answered",
        ),
        pytest.param(
            [(0, {}, {"held": 6}), (0, {}, EXPIRED), (0, {}, EXPIRED | AGAIN | {"held": 6}), (6, {}, EXPIRED | AGAIN)],
            id="held in vain, then held and answered",
        ),
        pytest.param([(0, {}, SHED), (6, {"retried": 6}, SHED)], id="shed, then answered"),
        pytest.param([(0, REFUSED, {}), (0, REFUSED, {})], id="refused by a replica, then shed"),
    ],
)
def test_a_request_that_is_sent_again_is_no_other_one(later):
    window = with_gateway((0, {}, {}), *later)
    assert arrival_rate(window, residence_s=1.0, now=2.0 * len(later)).all * FAST_S == pytest.approx(6)


def test_what_waited_for_a_start_in_vain_is_no_rate_and_what_was_shed_is():
    said = ({}, {"held": 9}, {"expired": 9}, {"expired": 9, "shed": 2})
    assert came_in(with_gateway(*((0, {}, fields) for fields in said), phase="loading")) == [0, 0, 2]


def test_a_gateway_that_does_not_count_is_read_as_before():
    assert came_in(with_gateway((0, {}, {}), (4, {}, {"held": 6}), (8, {}, {}))) == [10, 0]


def test_a_crowd_that_a_gateway_holds_for_a_start_is_no_rate():
    starting = member_of(RuntimeState(instance="a", phase="loading"))
    window = extended(EMPTY, [starting], (), now=0.0)
    window = extended(window, [starting], (ServiceDemand(namespace="default", name="s", held=200),), now=2.0)
    assert window.samples[-1].counts.came == 0
