"""The rate of arrivals: of a rise, of noise, of bursts, and whether it grows."""

from random import Random

import pytest

from fakes.load import NOW, steady
from kvasir_operator.scaling.arrivals import arrival_rate, dispersion
from kvasir_operator.scaling.window import LoadWindow


def samples(rate, *, every=2.0, seed=None):
    """Ten minutes of arrivals at a rate by seconds before now: as many as expected, or a Poisson draw of them."""
    random, found = Random(seed), []
    for sample in steady().samples:
        mean = every * rate(NOW - sample.at)
        count = mean if seed is None else sum(random.random() < mean / 1_000 for _ in range(1_000))
        found.append(sample._replace(counts=sample.counts._replace(arrivals=count)))
    return tuple(found)


def rate(found, residence_s=5.0):
    return arrival_rate(LoadWindow(samples=tuple(found)), residence_s=residence_s, now=NOW)


@pytest.mark.parametrize(("before", "ago_s", "seen"), [(1.0, 10, 9.0), (1.0, 20, 9.3), (8.0, 10, 8.3), (8.0, 60, 10.0)])
def test_a_step_to_ten_is_seen_at_once_where_it_is_no_chance(before, ago_s, seen):
    """Less a standard error, that of 100 or 200 arrivals; from 8 to 10 only the mean of a minute shows it."""
    assert rate(samples(lambda ago: 10.0 if ago < ago_s else before)).all == pytest.approx(seen, rel=0.04)


@pytest.mark.parametrize("seed", range(20))
def test_a_steady_stream_is_never_taken_for_much_more(seed):
    assert rate(samples(lambda _: 5.0, seed=seed)).all < 5.0 * 1.25


def test_a_ramp_grows_and_a_step_a_burst_and_a_steady_rate_do_not():
    assert rate(samples(lambda before: 10.0 - before / 100)).growth == pytest.approx(0.01, rel=0.05)
    for flat in (lambda _: 5.0, lambda b: 9.0 if b < 90 else 3.0, lambda b: 9.0 if 60 < b < 150 else 3.0):
        assert rate(samples(flat)).growth == 0.0


def test_tries_of_requests_that_were_refused_before_are_no_rise():
    """Ten come in each second for two minutes, fewer before. Half are refused for a minute, and come again after."""

    def counted(sample):
        ago = NOW - sample.at
        refused = 10 if 60 <= ago < 120 else -10 if ago < 60 else 0
        came = 20 if ago < 120 else 17 if ago < 180 else 10
        return sample._replace(counts=sample.counts._replace(arrivals=came - refused, refused=refused))

    assert rate(map(counted, steady().samples)).growth == 0.0


def test_growth_is_not_known_before_four_minutes():
    recent = [s for s in samples(lambda before: 10.0 - before / 100) if s.at > NOW - 200]
    assert rate(recent).growth == 0.0


def test_bursts_vary_more_than_chance_and_a_slow_change_does_not():
    joined = [s for s in samples(lambda _: 0.0) if round(s.at) % 10 == 0]

    def counted(counts):
        pairs = zip(joined, counts, strict=True)
        return LoadWindow(
            samples=tuple(s._replace(counts=s.counts._replace(span_s=10.0, arrivals=c)) for s, c in pairs)
        )

    assert dispersion(counted([40 + 40 * (n % 2) for n in range(len(joined))])) > 5
    assert dispersion(counted([40 + n for n in range(len(joined))])) == 1.0
    assert dispersion(LoadWindow()) == 1.0
