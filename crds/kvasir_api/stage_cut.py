"""Between which layers a model is cut into stages, consecutive layers for each of several processes or pods.

The runtime cuts by it, and the forecast counts by it what a cut leaves for the cache. It follows from the model alone, never from a
measurement, so that all ranks cut alike. Pure.
"""

from bisect import bisect_left
from collections.abc import Container, Sequence
from itertools import pairwise


def stage_layers(
    layer_bytes: Sequence[int], first_bytes: int, count: int, joined: Container[int] = ()
) -> tuple[range, ...]:
    """Layers of each of count stages: the heaviest has as few bytes as possible, and the longest as few layers as that permits.

    layer_bytes: of the weights of each layer. first_bytes: what the first stage has besides. joined: layers that no stage begins with.
    Where several cuts remain, early stages have fewer layers, since the first samples tokens. Raises ValueError where there are more
    stages than layers.
    """
    bounds = [*(layer for layer in range(len(layer_bytes)) if layer not in joined), len(layer_bytes)]
    units = [(sum(layer_bytes[start:end]), end - start) for start, end in pairwise(bounds)]
    if len(units) < count:
        raise ValueError(f"{len(units)} layers are fewer than {count} stages")
    every, total = len(layer_bytes), sum(layer_bytes) + first_bytes
    most_bytes = bisect_left(range(total), True, key=lambda most: bool(_starts(units, first_bytes, count, most, every)))
    most_layers = bisect_left(
        range(every), True, key=lambda most: bool(_starts(units, first_bytes, count, most_bytes, most))
    )
    starts = _starts(units, first_bytes, count, most_bytes, most_layers)
    return tuple(range(bounds[start], bounds[end]) for start, end in pairwise((*starts, len(units))))


def _starts(
    units: Sequence[tuple[int, int]], first_bytes: int, count: int, most_bytes: int, most_layers: int
) -> tuple[int, ...]:
    """Where stages begin that are within both limits, each filled from the last on; () where there are none.

    units: bytes and number of layers that stay together.
    """
    starts: list[int] = []
    start = len(units)
    for stage in range(count - 1, -1, -1):
        size, layers = (0, 0) if stage else (first_bytes, 0)
        end = start
        while (
            start > stage and size + units[start - 1][0] <= most_bytes and layers + units[start - 1][1] <= most_layers
        ):
            start -= 1
            size, layers = size + units[start][0], layers + units[start][1]
        if start == end:
            return ()
        starts.append(start)
    return () if start else tuple(reversed(starts))
