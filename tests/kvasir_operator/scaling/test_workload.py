"""Measuring a load: rates over long enough stretches, the length of requests, and of steps."""

import pytest

from fakes.load import NOW, steady
from kvasir_operator.scaling.load_counts import LoadCounts
from kvasir_operator.scaling.window import EMPTY, LoadGauges, LoadSample, LoadWindow
from kvasir_operator.scaling.workload import Workload, workload


def test_an_empty_window_has_no_load():
    assert workload(EMPTY, now=NOW) == Workload()


def test_the_rate_is_taken_over_a_minute():
    assert workload(steady(arrivals=2, ended=2, running=9), now=NOW).arrivals_per_s == pytest.approx(1.0, rel=0.05)


def test_a_rise_is_seen_within_seconds_where_requests_are_short():
    slow, fast = steady(arrivals=2, running=20, ended=2).samples, steady(arrivals=20, running=300, ended=2).samples
    window = LoadWindow(samples=(*slow[:-6], *fast[-6:]))
    assert workload(window, now=NOW).arrivals_per_s > 3.0


def test_a_burst_of_long_requests_is_spread_over_their_stay():
    """Twenty requests of 60 s within two seconds are twenty in a minute, not ten a second."""
    quiet = steady(seconds=600, running=20, pinned_tokens=2_000, ended=2 / 3, arrivals=2 / 3).samples
    (*rest, last) = quiet
    burst = LoadSample(
        at=last.at,
        typical=last.typical,
        supply=last.supply,
        gauges=last.gauges,
        counts=LoadCounts(span_s=2.0, arrivals=20, running_s=40.0, pinned_s=4_000.0),
    )
    load = workload(LoadWindow(samples=(*rest, burst)), now=NOW)
    assert load.seconds == pytest.approx(60, rel=0.1)
    assert load.arrivals_per_s < 0.7


def test_a_young_request_counts_with_the_tokens_that_it_will_hold():
    """Sequences pin 100 tokens on the mean of a minute; ten that have just begun pin almost none yet."""
    (*rest, last) = steady(running=10, pinned_tokens=1_000).samples
    young = LoadSample(at=NOW, typical=last.typical, gauges=LoadGauges(running=30, pinned_tokens=1_050))
    load = workload(LoadWindow(samples=(*rest[:-2], young)), now=NOW)
    assert load.running_kv == pytest.approx(3_000, rel=0.35)
    assert load.running_kv > load.pinned_tokens


def test_noise_is_no_other_rate():
    """Forty arrivals where thirty are usual are less than two standard errors more."""
    usual, more = steady(arrivals=6, running=1, ended=6).samples, steady(arrivals=8, running=1, ended=6).samples
    window = LoadWindow(samples=(*usual[:-5], *more[-5:]))
    assert workload(window, now=NOW).arrivals_per_s == pytest.approx(3.0, rel=0.1)


def test_requests_that_still_run_count_half():
    """600 requests came in the last minute, none of them has ended, and 300 ran on the mean."""
    window = steady(seconds=60, arrivals=20, running=300, output_tokens=6_000)
    assert workload(window, now=NOW).seconds == pytest.approx(60, rel=0.1)
    assert workload(window, now=NOW).output_tokens == pytest.approx(600, rel=0.1)


def test_a_queue_is_remembered_for_a_minute():
    calm, queued = steady().samples, steady(waiting=1).samples
    assert workload(LoadWindow(samples=(*calm[:-10], queued[-10], *calm[-9:])), now=NOW).queued
    assert not workload(LoadWindow(samples=(*calm[:-40], queued[-40], *calm[-39:])), now=NOW).queued


def test_requests_that_were_refused_are_a_part_of_the_rate():
    """One a second is computed for ten seconds each, and two more a second are refused when they come."""
    load = workload(steady(arrivals=2, ended=2, running=10, refused=4), now=NOW)
    assert load.arrivals_per_s == pytest.approx(3.0, rel=0.05)
    assert load.refused_per_s == pytest.approx(2.0, rel=0.05)
    assert load.seconds == pytest.approx(10, rel=0.05)


def test_what_is_refused_while_it_waits_came_once_and_took_nothing():
    """Three a second come; two of them end without having run."""
    load = workload(steady(arrivals=6, expired=4, ended=6, running=10, prompt_tokens=600, output_tokens=200), now=NOW)
    assert load.arrivals_per_s == pytest.approx(3.0, rel=0.05)
    assert load.refused_per_s == pytest.approx(2.0, rel=0.05)
    assert (load.seconds, load.output_tokens) == pytest.approx((10, 100), rel=0.05)
    assert load.prompt_tokens == 100


def test_tries_of_requests_that_were_refused_before_are_no_more_than_those():
    """Of what was refused an hour ago more comes again than is refused now: each was counted when it came first."""
    load = workload(steady(arrivals=2, ended=2, running=10, refused=-1), now=NOW)
    assert (load.arrivals_per_s, load.refused_per_s) == pytest.approx((1.0, 0.0), rel=0.05)


def test_held_requests_that_are_refused_at_a_replica_are_no_rate():
    """Forty were held while nothing served; ten found a place, thirty did not."""
    (*rest, last) = steady(seconds=600, running=1, arrivals=0.2, ended=0.2).samples
    crowd = last._replace(counts=LoadCounts(span_s=2.0, arrivals=10, refused=30, released=40, running_s=2.0))
    load = workload(LoadWindow(samples=(*rest, crowd)), now=NOW)
    assert load.arrivals_per_s == pytest.approx(0.1, rel=0.1)
