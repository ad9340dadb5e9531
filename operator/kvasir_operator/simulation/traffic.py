"""Requests of a simulated service: how many come when, and how long they are. The same seed gives the same requests.

Arrivals are a Poisson process whose rate follows a function of time (thinning after Lewis and Shedler 1979). Lengths
are log-normal, which is what published traces of language models look like (Azure 2023, Mooncake 2025).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import cos, exp, log, pi, sqrt
from random import Random

RateCurve = Callable[[float], float]
"""Requests per second at a time in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthMix:
    """Mean tokens of prompt and answer, and the spread of both (sigma of the logarithm; 0 makes all alike).

    groups: prefixes that requests share; shared: tokens of such a prefix, which are part of the prompt.
    """

    prompt: float
    output: float
    spread: float = 0.5
    groups: int = 0
    shared: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRequest:
    """at: seconds. prompt, output: tokens. group: of requests with the same first `shared` tokens; -1 for none."""

    number: int
    at: float
    prompt: int
    output: int
    group: int = -1
    shared: int = 0


def requests(
    rate: RateCurve, mix: LengthMix, *, seconds: float, most_rate: float, seed: int
) -> Iterator[SimulatedRequest]:
    """Requests in the order of their arrival. most_rate: an upper bound of the rate."""
    random, at, number = Random(seed), 0.0, 0
    while True:
        at += random.expovariate(most_rate)
        if at >= seconds:
            return
        if random.random() * most_rate > rate(at):
            continue
        prompt = mix.shared + _length(random, mix.prompt - mix.shared, mix.spread)
        group = random.randrange(mix.groups) if mix.groups else -1
        output = _length(random, mix.output, mix.spread)
        yield SimulatedRequest(
            number=number, at=at, prompt=prompt, output=output, group=group, shared=mix.shared if mix.groups else 0
        )
        number += 1


def _length(random: Random, mean: float, spread: float) -> int:
    """A log-normal length with that mean, at least 1."""
    return max(1, round(exp(random.gauss(log(mean) - spread * spread / 2, spread))))


def step(before: float, after: float, *, at: float, back: float = float("inf")) -> RateCurve:
    """One rate, then another one until `back`."""
    return lambda t: after if at <= t < back else before


def ramp(before: float, after: float, *, start: float, end: float) -> RateCurve:
    """From one rate to another, linearly."""
    return lambda t: before + (after - before) * min(1.0, max(0.0, (t - start) / (end - start)))


def diurnal(low: float, high: float, *, period: float) -> RateCurve:
    """A day of that many seconds, from its low to its high and back."""
    return lambda t: low + (high - low) * (1 - cos(2 * pi * t / period)) / 2


def square(low: float, high: float, *, period: float) -> RateCurve:
    """Half a period high, half a period low."""
    return lambda t: high if t % period < period / 2 else low


def noisy(mean: float, *, fraction: float, every: float, seed: int) -> RateCurve:
    """A rate that changes every so many seconds, evenly within ± that fraction."""
    random = Random(seed)
    factors = [1 + fraction * (2 * random.random() - 1) for _ in range(4096)]
    return lambda t: mean * factors[int(t / every) % len(factors)]


def bursty(curve: RateCurve, *, cv: float, every: float, seed: int) -> RateCurve:
    """A curve times a gamma-distributed factor of mean 1 that changes every so many seconds; cv: its deviation."""
    random, shape = Random(seed), 1 / (cv * cv)
    factors = [min(1 + 3 * sqrt(cv), random.gammavariate(shape, 1 / shape)) for _ in range(4096)]
    return lambda t: curve(t) * factors[int(t / every) % len(factors)]
