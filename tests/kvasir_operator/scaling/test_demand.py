"""Each signal needs an absolute number of replicas, and a request enters it once."""

import pytest
from msgspec.structs import replace

from fakes.load import NOW, steady
from kvasir_operator.scaling.capacity import ReplicaCapacity
from kvasir_operator.scaling.demand import demand, release_edge, target_edge
from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.step_model import StepModel
from kvasir_operator.scaling.workload import workload

POLICY = ScalingPolicy()
STREAMS = {"arrivals": 2.0, "ended": 2.0, "output_tokens": 1_000.0}
"""A request each second, of 500 tokens."""


def asked(window, policy=POLICY, *, release=False):
    edge = release_edge(policy) if release else target_edge(policy)
    return demand(window.last, workload(window, now=NOW), policy, edge)


def with_steps(window, *, base=0.020, slope=0.0005, batches=(20, 60)):
    """The same where steps of these sizes were measured: 20 ms and half a millisecond for each sequence."""
    model = StepModel()
    for batch in batches:
        model = model.faded(2.0).extended(steps=100, rows=100.0 * batch, seconds=100 * (base + slope * batch))
    return replace(window, step=model)


@pytest.mark.parametrize(
    ("load", "signal", "replicas"),
    [
        ({"pinned_tokens": 0}, "kv", 0),
        ({"pinned_tokens": 700}, "kv", 1),  # 700 / (0.85 × 0.9 × 1000) = 0.92
        ({"pinned_tokens": 800}, "kv", 2),
        # 300 streams of at most 256 at once are 1.38 replicas at 85 %, however little they pin
        ({"running": 300, "pinned_tokens": 10, "slots": 256.0, "replicas": 2}, "slots", 2),
        # 90,000 waiting prompt tokens at 1000/s within 60 s
        ({"waiting": 9, "waiting_tokens": 90_000}, "backlog", 2),
        # 1000 held requests at gateways, 240 kB of text, are about 60,000 tokens
        ({"held": 1000, "held_bytes": 240_000}, "backlog", 1),
        # 4 requests of 750 prompt tokens each 2 s need 1500 / (0.75 × 1000) replicas
        ({"arrivals": 4, "ended": 4, "prompt_tokens": 3000, "running": 4}, "prefill", 2),
    ],
)
def test_each_signal_requires_an_absolute_number(load, signal, replicas):
    found = asked(steady(**load))
    assert (found.signal, found.replicas) == (signal, replicas)


def test_replicas_for_prompts_come_on_top_of_what_running_answers_fill():
    """1,500 tokens fill two of three caches up to 85 %: with one of the three for prompts that is full."""
    load = {"pinned_tokens": 1500, "running": 9, "replicas": 3}
    assert asked(steady(**load)).levels["kv"] == pytest.approx(1.96, abs=0.01)
    assert asked(steady(**load, prefill=1)).levels["kv"] == pytest.approx(2.96, abs=0.01)
    window = steady(**load, prefill=1)
    queue = window.samples[-1]._replace(gauges=window.samples[-1].gauges._replace(waiting=9))
    queued = replace(window, samples=(*window.samples[:-1], queue))
    assert asked(queued).levels["kv"] == pytest.approx(2.67, abs=0.01), "while a queue is drained caches may be full"


def test_requests_that_come_faster_than_they_are_admitted_count_before_they_run():
    """A request a second comes and half of them are answered: one and a half replicas of 85 %, of which one is full."""
    window = steady(pinned_tokens=900, running=9, waiting=9, arrivals=2, ended=1.0, prompt_tokens=0)
    assert asked(window).levels["kv"] == pytest.approx(1.57, abs=0.1)


FEW_LONG = {"kv": 2048.0, "running": 3, "pinned_tokens": 1500, "arrivals": 1.08, "ended": 1.08, "output_tokens": 972}
"""Four streams of 900 tokens each, one after the other, of which the cache holds three: as measured, with steps of
6.3 ms. By what a request pins on the mean it holds 3.2 at 85 %."""


def test_requests_that_wait_for_a_minute_require_one_replica_more_whatever_was_measured():
    stuck = with_steps(steady(waiting=1, **FEW_LONG), base=0.0063, slope=0.0)
    found = asked(stuck)
    assert (found.signal, found.level, found.load.stuck) == ("kv", 2.0, True)
    assert asked(stuck, release=True).replicas == 2  # nor does the second one leave while that lasts
    *before, last = stuck.samples
    once = before[-5]._replace(gauges=before[-5].gauges._replace(waiting=0))
    assert asked(replace(stuck, samples=(*before[:-5], once, *before[-4:], last))).replicas == 1
    assert asked(replace(stuck, samples=stuck.samples[-20:])).replicas == 1
    assert asked(replace(stuck, samples=(*before, last._replace(serving=2, supply=last.supply * 2)))).level < 2.0


def test_requests_that_wait_for_prompts_to_be_computed_are_no_matter_of_the_cache():
    found = asked(steady(waiting=1, prompt_tokens=1_400, arrivals=2, ended=2, running=1, pinned_tokens=90))
    assert (found.signal, found.replicas, found.load.stuck) == ("prefill", 1, True)


def test_the_rate_of_arrivals_requires_no_more_than_what_is_there():
    """The same rate without anything in flight is over."""
    (*rest, last) = steady(running=5, pinned_tokens=500, **STREAMS).samples
    over = last._replace(gauges=type(last.gauges)())
    window = type(steady())(samples=(*(s._replace(gauges=over.gauges) for s in rest), over))
    assert asked(window).levels["kv"] == 0.0


def test_fewer_replicas_have_larger_batches_and_slower_steps():
    """142 streams on two replicas of 256 slots: on one replica each token would take so long that 300 of them would run
    at once. What runs now fits one; what one decodes does not."""
    window = with_steps(
        steady(replicas=2, running=142, slots=256.0, kv=1e6, arrivals=6.29, ended=6.29, output_tokens=9_434.0),
        slope=0.00015,
        batches=(50, 90),
    )
    assert 142 / (256 * 0.70) < 1 < asked(window, release=True).levels["slots"]


def test_aborted_requests_do_not_make_the_others_smaller():
    """Every second one ends after a moment: what is pinned per running request stays what it is."""
    window = steady(running=10, pinned_tokens=1_000, arrivals=2, ended=2)
    assert workload(window, now=NOW).kv_tokens == pytest.approx(100)


def test_unmeasured_prefill_rate_requires_nothing():
    assert asked(steady(arrivals=4, prompt_tokens=3000, rate=0.0)).replicas == 0


def test_replicas_that_have_not_answered_for_minutes_are_not_counted_on():
    assert asked(steady(pinned_tokens=700, lost=("pod-b",))).replicas == 2


def test_replicas_may_be_full_while_a_queue_is_drained():
    busy = {"pinned_tokens": 890, "running": 10}
    assert asked(steady(**busy)).replicas == 2
    (*rest, last) = steady(**busy).samples
    queued = rest[-3]._replace(gauges=last.gauges._replace(waiting=3))
    assert asked(type(steady())(samples=(*rest[:-3], queued, *rest[-2:], last))).replicas == 1


@pytest.mark.parametrize(("there", "batch", "replicas"), [(1, 28, 1), (1, 60, 2), (3, 100, 6)])
def test_the_objective_between_tokens_requires_smaller_batches(there, batch, replicas):
    """A step of 20 ms and 0.5 ms a sequence is 40 ms long with 40 sequences, which get 1,000 tokens/s: 85 % of that is
    to be used. Cache and slots are free."""
    running, tokens_per_s = there * batch, there * batch / (0.020 + 0.0005 * batch)
    flow = {"arrivals": tokens_per_s / 250, "ended": tokens_per_s / 250, "output_tokens": 2 * tokens_per_s}
    window = with_steps(steady(replicas=there, running=running, slots=512.0, kv=1e6, **flow))
    found = asked(window, ScalingPolicy(itl_s=0.040))
    assert found.load.step.batch_within(0.040) == pytest.approx(40, rel=0.01)
    assert (found.signal, found.replicas) == ("itl", replicas)


def test_steps_of_one_size_are_taken_to_grow_with_it():
    window = with_steps(steady(running=60, slots=512.0, kv=1e6, **STREAMS), batches=(60,))
    assert asked(window, ScalingPolicy(itl_s=0.025)).levels["itl"] == pytest.approx(2.0)


def test_without_an_objective_decode_requires_nothing():
    assert "itl" not in asked(with_steps(steady(running=60))).levels


def test_an_objective_for_the_first_token_leaves_prompts_more_room():
    """1,000 tokens take a second: a mean wait of one second is had at a utilization of one half."""
    load = {"arrivals": 2, "prompt_tokens": 2_000, "running": 3, "ended": 2}
    assert asked(steady(**load)).levels["prefill"] == pytest.approx(1 / 0.75)
    assert asked(steady(**load), ScalingPolicy(ttft_s=2.0)).levels["prefill"] == pytest.approx(1 / 0.5)


@pytest.mark.parametrize(("cold_start_s", "ttft"), [(2.0, 3.75), (20.0, 1.5), (120.0, 0.0)])
def test_prompts_that_wait_require_replicas_that_come_in_time(cold_start_s, ttft):
    """30,000 tokens are half a minute for one replica; later than that a new one does not help any of them."""
    window = steady(waiting=15, waiting_tokens=30_000, arrivals=1, prompt_tokens=2_000)
    found = asked(window, ScalingPolicy(ttft_s=10.0, cold_start_s=cold_start_s))
    assert found.levels["ttft"] == pytest.approx(ttft)


def test_a_larger_class_of_accelerators_needs_fewer_replicas():
    """What the present replicas cannot hold is divided by what the next one holds, not by a median of both."""
    window = steady(pinned_tokens=3_000, replicas=2)
    (*rest, last) = window.samples
    large = ReplicaCapacity(kv_tokens=10_000.0)
    mixed = type(window)(samples=(*rest, last._replace(typical=large)))
    assert asked(window).replicas == 4
    assert asked(mixed).replicas == 3


def test_the_release_edge_requires_more_by_every_signal():
    window = steady(pinned_tokens=500, running=100, slots=256.0, prompt_tokens=1_000, **STREAMS)
    up, down = asked(window), asked(window, release=True)
    assert all(down.levels[signal] > up.levels[signal] for signal in ("kv", "slots", "prefill"))


@pytest.mark.parametrize(
    ("tokens_per_s", "slope", "replicas"),
    # Steps of 50 ms and more for an objective of 40. Two replicas of 20 sequences instead of one of 50: 60 ms, not 75.
    [(0, 0.0005, 1), (667, 0.0005, 3), (667, 0.0, 1), (10_000, 0.0005, 13), (1e20, 0.0005, 5e16)],
)
def test_an_objective_that_no_count_reaches_adds_replicas_only_while_they_help(tokens_per_s, slope, replicas):
    """One replica more shortens steps by less than 5 %: base / (1 - slope x rate / replicas)."""
    flow = {"arrivals": tokens_per_s / 50, "ended": tokens_per_s / 50, "output_tokens": 2 * tokens_per_s}
    streams = with_steps(steady(running=50, slots=4096.0, kv=1e7, **flow), base=0.050, slope=slope)
    found = asked(streams, ScalingPolicy(itl_s=0.040))
    assert found.itl_unreachable
    assert found.levels["itl"] == pytest.approx(replicas)
    assert asked(streams, ScalingPolicy(itl_s=0.040), release=True).levels["itl"] >= replicas


def test_an_objective_is_not_given_up_before_batches_of_two_sizes_were_measured():
    found = asked(with_steps(steady(running=60, **STREAMS), base=0.1, batches=(60,)), ScalingPolicy(itl_s=0.040))
    assert not found.itl_unreachable
