"""Which layers each of several processes has that compute a model one after another (pipeline parallelism).

A stage has consecutive layers, and their part of the cache. The first has the table of embeddings and the head too, so
that tokens are sampled where they come from; the last has the norm behind the layers. Huang et al. 2019 (GPipe).
"""

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from kvasir_runtime.layers.spec import DecoderSpec


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """layers: what each costs, in any unit. first: what the first stage has besides."""

    layers: Sequence[float]
    first: float = 0


def staged(spec: DecoderSpec, layers: range) -> DecoderSpec:
    """The spec of a process with these layers. Raises ValueError, which says what cannot be divided so."""
    if spec.encoder is not None:
        raise ValueError("encoders are computed by one process")
    return replace(spec, stage=layers, head=spec.head if layers.start == 0 else "none")


def divided(
    times: LayerCosts,
    count: int,
    joined: Container[int] = (),
    *,
    speeds: Sequence[float] = (),
    sizes: LayerCosts | None = None,
    most_size: float = math.inf,
) -> tuple[range, ...]:
    """Consecutive layers for each of count stages, so that the slowest stage takes as little time as possible.

    speeds: of each stage, by which its time is divided; () where all are alike. joined: layers that no stage begins
    with. sizes: of which no stage has more than most_size, nor than the largest stage of that cut which has the
    smallest one, where that is more. Raises ValueError where there are more stages than layers.
    """
    num_layers = len(times.layers)
    bounds = [*(layer for layer in range(num_layers) if layer not in joined), num_layers]
    if len(bounds) <= count:
        raise ValueError(f"{len(bounds) - 1} layers are fewer than {count} stages")
    weights = LayerCosts((0,) * num_layers) if sizes is None else sizes
    smallest, _ = _cut(weights, weights, (1.0,) * count, bounds, math.inf)
    _, ends = _cut(times, weights, speeds or (1.0,) * count, bounds, max(smallest, most_size))
    return tuple(range(*pair) for pair in pairwise((0, *ends)))


def _cut(
    times: LayerCosts, sizes: LayerCosts, speeds: Sequence[float], bounds: Sequence[int], most_size: float
) -> tuple[float, tuple[int, ...]]:
    """The time of the slowest stage, and where stages end. bounds: where they may. A cut within most_size is there."""
    time_sums, size_sums = ((0, *accumulate(costs.layers)) for costs in (times, sizes))

    def time(speed: float, start: int, end: int) -> float:
        """Of a stage with layers between two bounds."""
        first, last = bounds[start], bounds[end]
        size = size_sums[last] - size_sums[first] + (0 if first else sizes.first)
        if size > most_size:
            return math.inf
        return (time_sums[last] - time_sums[first] + (0 if first else times.first)) / speed

    # found[end]: the slowest of the stages so far, and where they end, if they have the layers before a bound.
    found: dict[int, tuple[float, tuple[int, ...]]]
    found = {end: (time(speeds[0], 0, end), (bounds[end],)) for end in range(1, len(bounds))}
    for stage, speed in enumerate(speeds[1:], 1):
        longer: dict[int, tuple[float, tuple[int, ...]]] = {}
        for end in range(stage + 1, len(bounds)):
            slowest, start = min((max(found[start][0], time(speed, start, end)), start) for start in range(stage, end))
            longer[end] = slowest, (*found[start][1], bounds[end])
        found = longer
    return found[len(bounds) - 1]
