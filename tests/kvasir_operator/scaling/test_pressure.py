"""Sequences that lose their KV cache, and load on one replica: when each counts, and what a replica more answers."""

import pytest
from msgspec.structs import replace

from fakes.load import NOW, steady
from kvasir_operator.scaling.decide import ScalingState, decide
from kvasir_operator.scaling.policy import ScalingPolicy
from kvasir_operator.scaling.pressure import LoadPressure, pressure

RULES = ScalingPolicy(min_replicas=1, max_replicas=4)


@pytest.mark.parametrize(
    ("each_tick", "running", "exhausted"),
    [(0, 10, False), (0.05, 10, False), (0.2, 10, True), (0.2, 200, False), (1, 200, True)],
)
def test_few_preemptions_among_many_sequences_are_no_trouble(each_tick, running, exhausted):
    """Thirty ticks are a minute, of which the first counted for what was before."""
    assert pressure(steady(preemptions=each_tick, running=running)).exhausted is exhausted


def test_what_was_counted_before_another_replica_came_says_nothing_of_the_present_ones():
    window = steady(preemptions=1, running=10, imbalance=0.9, busiest="a")
    assert pressure(window).exhausted
    *before, last = window.samples
    grown = replace(window, samples=(*before, last._replace(at=NOW + 2, serving=2)))
    assert pressure(grown) == LoadPressure(busiest="a")


@pytest.mark.parametrize(("ticks", "seen"), [(20, 0.0), (26, 0.6)])
def test_a_new_replica_without_load_is_no_imbalance(ticks, seen):
    *before, _ = steady(replicas=1).samples
    after = steady(replicas=2, imbalance=0.6, busiest="a").samples[-ticks:]
    window = replace(steady(), samples=(*before[:-ticks], *after))
    assert pressure(window).imbalance == pytest.approx(seen)


def decided(window, wanted, now=NOW):
    state = ScalingState(wanted=wanted, since=0.0)
    return decide(RULES, window, unplaced_s=0.0, state=state, now=now)[0]


def test_exhaustion_requires_one_replica_more_and_no_further_while_it_starts():
    """By what is pinned one would do: 500 of 765 tokens."""
    window = steady(pinned_tokens=500, running=10, preemptions=1)
    first = decided(window, 1)
    assert (first.replicas, first.signal) == (2, "kv")
    assert first.reason == "KV cache needs 2.0 replicas at 85 %; sequences lose their KV cache to others"
    assert decided(window, 2).replicas == 2
    assert decided(steady(pinned_tokens=500, running=10), 1).replicas == 1


@pytest.mark.parametrize(("drafted", "accepted", "share"), [(0, 0, 1.0), (30, 3, 1.0), (100, 20, 0.2)])
def test_of_few_drafts_nothing_is_said(drafted, accepted, share):
    assert pressure(steady(drafted=drafted, accepted=accepted)).acceptance == pytest.approx(share)
