"""Simulated requests: their rate, their lengths, and that the same seed gives the same ones."""

import pytest

from kvasir_operator.simulation import traffic
from kvasir_operator.simulation.traffic import LengthMix

MIX = LengthMix(prompt=400, output=100)


def made(rate, *, seconds=600.0, most=20.0, mix=MIX, seed=1):
    return list(traffic.requests(rate, mix, seconds=seconds, most_rate=most, seed=seed))


def test_requests_follow_the_rate_and_the_mean_lengths():
    found = made(traffic.step(2.0, 10.0, at=300))
    early, late = [r for r in found if r.at < 300], [r for r in found if r.at >= 300]
    assert len(early) == pytest.approx(600, rel=0.15)
    assert len(late) == pytest.approx(3000, rel=0.1)
    assert sum(r.prompt for r in found) / len(found) == pytest.approx(400, rel=0.05)
    assert sum(r.output for r in found) / len(found) == pytest.approx(100, rel=0.05)
    assert [r.at for r in found] == sorted(r.at for r in found)


def test_the_same_seed_gives_the_same_requests():
    curve = traffic.diurnal(1.0, 5.0, period=600)
    assert made(curve) == made(curve)
    assert made(curve) != made(curve, seed=2)


def test_requests_of_a_group_share_the_beginning_of_their_prompts():
    found = made(lambda _: 5.0, mix=LengthMix(prompt=400, output=10, groups=3, shared=300))
    assert {r.group for r in found} == {0, 1, 2}
    assert all(r.shared == 300 < r.prompt for r in found)


@pytest.mark.parametrize(
    ("curve", "at", "rate"),
    [
        (traffic.step(1, 5, at=10, back=20), 9, 1),
        (traffic.step(1, 5, at=10, back=20), 10, 5),
        (traffic.step(1, 5, at=10, back=20), 20, 1),
        (traffic.ramp(1, 5, start=10, end=20), 15, 3),
        (traffic.ramp(1, 5, start=10, end=20), 99, 5),
        (traffic.diurnal(1, 5, period=100), 0, 1),
        (traffic.diurnal(1, 5, period=100), 50, 5),
        (traffic.square(1, 5, period=100), 49, 5),
        (traffic.square(1, 5, period=100), 50, 1),
    ],
)
def test_shapes(curve, at, rate):
    assert curve(at) == pytest.approx(rate)


def test_noise_stays_within_its_bounds_and_bursts_have_the_mean_of_the_curve():
    noise = traffic.noisy(10.0, fraction=0.2, every=5, seed=1)
    assert all(8 <= noise(t) <= 12 for t in range(1000))
    burst = traffic.bursty(lambda _: 10.0, cv=0.3, every=1, seed=1)
    assert sum(burst(t) for t in range(4000)) / 4000 == pytest.approx(10, rel=0.05)
