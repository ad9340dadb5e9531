"""Which layers each of several processes has that compute a model one after another (pipeline parallelism).

A stage has consecutive layers, and their part of the cache. The first has the table of embeddings and the head too, so
that tokens are sampled where they come from; the last has the norm behind the layers. Huang et al. 2019 (GPipe).
"""

from collections.abc import Container, Sequence
from dataclasses import replace
from itertools import pairwise

from kvasir_runtime.layers.spec import DecoderSpec


def staged(spec: DecoderSpec, layers: range) -> DecoderSpec:
    """The spec of a process with these layers. Raises ValueError, which says what cannot be divided so."""
    if spec.encoder is not None:
        raise ValueError("encoders are computed by one process")
    return replace(spec, stage=layers, head=spec.head if layers.start == 0 else "none")


def divided(layer_bytes: Sequence[int], first_bytes: int, count: int, joined: Container[int] = ()) -> tuple[range, ...]:
    """Consecutive layers for each of count stages, so that the heaviest stage has as few bytes as possible.

    layer_bytes: of the weights of each layer. first_bytes: what the first stage has besides. joined: layers that no
    stage begins with. Raises ValueError where there are more stages than layers.
    """
    bounds = [*(layer for layer in range(len(layer_bytes)) if layer not in joined), len(layer_bytes)]
    layer_bytes = [sum(layer_bytes[start:end]) for start, end in pairwise(bounds)]
    layers = len(layer_bytes)
    if layers < count:
        raise ValueError(f"{layers} layers are fewer than {count} stages")
    sums = [0]
    for size in layer_bytes:
        sums.append(sums[-1] + size)
    # heaviest[end]: of stages with the layers before end; ends: where the stages so far end, the last one included.
    heaviest = [first_bytes + total for total in sums]
    ends: list[tuple[int, ...]] = [(end,) for end in range(layers + 1)]
    for stage in range(1, count):
        found = {
            end: min((max(heaviest[start], sums[end] - sums[start]), start) for start in range(stage, end))
            for end in range(stage + 1, layers + 1)
        }
        ends = [(*ends[found[end][1]], end) if end in found else () for end in range(layers + 1)]
        heaviest = [found[end][0] if end in found else 0 for end in range(layers + 1)]
    return tuple(
        range(bounds[start], bounds[end]) for start, end in zip((0, *ends[layers]), ends[layers], strict=False)
    )
