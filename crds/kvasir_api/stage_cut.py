"""Between which layers a model is cut into stages, consecutive layers for each of several processes or pods.

The runtime cuts by it, and the forecast counts by it what a cut leaves for the cache. It follows from the model, the options and the
memory of a device, never from a measurement, so that all ranks cut alike, at every start. Pure.
"""

from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

BALANCED_ROWS: Final = 8
"""Requests of the step that stages are balanced for: of experts it reads those that some of them go to."""
SLOWER: Final = 20
"""The slowest stage may read one part in so many more than it has to, where that makes the largest stage smaller."""
SPARE: Final = 8
"""A cut by what is read leaves one part in so many of the room: what a step takes is only measured once weights are loaded."""
FEWER_TOKENS: Final = 4
"""Nor may it leave the cache fewer tokens than the cut by bytes by more than one in so many."""

Cut = tuple[range, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCosts:
    """What each layer takes, and what the first stage takes besides; bytes that are held, or that a step reads."""

    layers: Sequence[int]
    first: int = 0

    def most(self, cut: Cut) -> int:
        """Of the stage with most."""
        return max(sum(self.layers[stage.start : stage.stop]) + (0 if stage.start else self.first) for stage in cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRoom:
    """num_bytes: that all ranks of a stage have for weights and cache. layer_cache_bytes: what the cache has to hold takes in a layer
    of each cache group. groups: the cache group of each layer, () where all are of one.

    Blocks of all groups are as large as a stage needs for the group of which it has most layers.
    """

    num_bytes: int
    layer_cache_bytes: int
    groups: Sequence[int] = ()

    def holds(self, held: LayerCosts, cut: Cut, spare_bytes: int = 0) -> bool:
        """Whether the weights of the heaviest stage and the cache of the longest leave so much."""
        return held.most(cut) + self._most_cached(cut) * self.layer_cache_bytes + spare_bytes <= self.num_bytes

    def caches_as_much(self, held: LayerCosts, cut: Cut, other: Cut) -> bool:
        """Whether a cut leaves the cache as many tokens as another, but for one in so many."""
        own, theirs = ((self.num_bytes - held.most(one), self._most_cached(one)) for one in (cut, other))
        return own[0] * theirs[1] * FEWER_TOKENS >= theirs[0] * own[1] * (FEWER_TOKENS - 1)

    def of_groups(self, num_layers: int) -> list[LayerCosts]:
        """For each cache group, 1 in each layer that is of it."""
        groups = self.groups or [0] * num_layers
        return [LayerCosts(layers=[int(one == group) for one in groups]) for group in sorted(set(groups))]

    def _most_cached(self, cut: Cut) -> int:
        """Layers of one group that a stage has, at most."""
        return max(one.most(cut) for one in self.of_groups(cut[-1].stop))


def unread_experts(chosen: int, experts: int) -> float:
    """Share of the experts of a layer, 0..1, that no request of a balanced step goes to. chosen: by each of them, all alike."""
    return (1 - chosen / experts) ** BALANCED_ROWS if experts > chosen else 0.0


def balanced_stages(
    read: LayerCosts, held: LayerCosts, count: int, room: StageRoom, joined: Container[int] = ()
) -> Cut:
    """Layers of each of count stages: the slowest reads as little as possible in a step of decoding, and nearly so where that makes the
    largest smaller. Where memory does not hold that, as `stage_layers`; where it does not hold that either, any cut that it holds.

    joined: layers that no stage begins with. Raises ValueError where there are more stages than layers.
    """
    lightest = stage_layers(held.layers, held.first, count, joined)
    fastest = _fastest(read, held, count, joined, read.most(lightest))
    if room.holds(held, fastest, room.num_bytes // SPARE) and room.caches_as_much(held, fastest, lightest):
        return fastest
    if room.holds(held, lightest):
        return lightest
    groups = room.of_groups(len(held.layers))
    bounds, sums = _units((held, *groups), joined)
    for most in range(1, len(held.layers) + 1):
        limits = room.num_bytes - most * room.layer_cache_bytes, *[most] * len(groups)
        if starts := _starts(sums, (held.first, *[0] * len(groups)), count, limits):
            return _ranges(bounds, starts)
    return lightest


def stage_layers(layer_bytes: Sequence[int], first_bytes: int, count: int, joined: Container[int] = ()) -> Cut:
    """Layers of each of count stages: the heaviest has as few bytes as possible, and the longest as few layers as that permits.

    layer_bytes: of the weights of each layer. first_bytes: what the first stage has besides. joined: layers that no stage begins with.
    Where several cuts remain, early stages have fewer layers, since the first samples tokens. Raises ValueError where there are more
    stages than layers.
    """
    held = LayerCosts(layers=layer_bytes, first=first_bytes)
    costs = held, _ones(held)
    return _least(costs, count, joined, [sum(one.layers) + one.first for one in costs])


def _fastest(read: LayerCosts, held: LayerCosts, count: int, joined: Container[int], most_read: int) -> Cut:
    """most_read: by the slowest stage of another cut, which this one does not exceed."""
    costs = read, held, _ones(held)
    limits = [sum(one.layers) + one.first for one in costs]
    least = read.most(_least(costs[:1], count, joined, limits[:1]))
    return _least(costs[1:] + costs[:1], count, joined, [*limits[1:], min(least + least // SLOWER, most_read)])


def _least(costs: Sequence[LayerCosts], count: int, joined: Container[int], limits: list[int]) -> Cut:
    """Within the limits, one for each cost: the stage with most of the first cost has as little of it as possible, then of the next."""
    bounds, sums = _units(costs, joined)
    if len(bounds) <= count:
        raise ValueError(f"{len(bounds) - 1} layers are fewer than {count} stages")
    first = tuple(one.first for one in costs)
    for index in range(len(limits)):

        def can_be(most: int, index: int = index) -> bool:
            return bool(_starts(sums, first, count, (*limits[:index], most, *limits[index + 1 :])))

        limits[index] = bisect_left(range(limits[index]), True, key=can_be)
    return _ranges(bounds, _starts(sums, first, count, limits))


def _units(costs: Sequence[LayerCosts], joined: Container[int]) -> tuple[list[int], list[list[int]]]:
    """Where layers may be cut, and of each cost what the layers before each of these places cost."""
    num_layers = len(costs[0].layers)
    bounds = [*(layer for layer in range(num_layers) if layer not in joined), num_layers]
    before = [[0, *accumulate(one.layers)] for one in costs]
    return bounds, [[one[bound] for bound in bounds] for one in before]


def _ones(held: LayerCosts) -> LayerCosts:
    return LayerCosts(layers=[1] * len(held.layers))


def _ranges(bounds: Sequence[int], starts: Iterable[int]) -> Cut:
    return tuple(range(bounds[start], bounds[end]) for start, end in pairwise((*starts, len(bounds) - 1)))


def _starts(
    sums: Sequence[Sequence[int]], first: tuple[int, ...], count: int, limits: Sequence[int]
) -> tuple[int, ...]:
    """Where stages begin that are within all limits, each filled from the last on; () where there are none.

    sums: as of `_units`. first: what the first stage has besides.
    """
    starts: list[int] = []
    end = len(sums[0]) - 1
    for stage in range(count - 1, 0, -1):
        within = (bisect_left(one, one[end] - limit) for one, limit in zip(sums, limits, strict=True))
        start = max(stage, *within)
        if start >= end:
            return ()
        starts.append(start)
        end = start
    if any(more + one[end] > limit for more, one, limit in zip(first, sums, limits, strict=True)):
        return ()
    return 0, *reversed(starts)
