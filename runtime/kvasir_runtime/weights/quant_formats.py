"""Which weights are held in 8 or 4 bits: decided from sizes and from what the checkpoint holds. Called by `build`.

Quantized are the matrices of the layers and the head. As int8 the head is as the others; beside fp8 and int4 it is int8
too, which is nearer to the truth than either, since all of a layer stack's work is read through it. The table of
embeddings stays in the compute type: a step reads a few rows of it only; where head and table are one, the head is a
quantized copy. Norms and biases stay as they are, and so does a matrix whose columns are no whole groups.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kvasir_api.options import Quantization
from kvasir_runtime.kernels.quantized import FP8, QuantFormat
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.family import Place

HEAD, TABLE = "head.weight", "embedding"
KEPT: Final = {
    "Q8_0": QuantFormat(bits=8),
    "Q4_0": QuantFormat(bits=4),
    "Q4_1": QuantFormat(bits=4),
    "Q4_K": QuantFormat(bits=4, wide=True),
    "e4m3": FP8,
    "e4m3 blocks": replace(FP8, group=128),
}
"""Types of GGUF files, and of checkpoints in fp8, whose numbers and scales are taken over as they are."""
LAYERS: Final = {"fp8": FP8, "int8": QuantFormat(bits=8), "int4": QuantFormat(bits=4)}
"""What the layers' matrices are quantized to while they are read."""
ROUNDED: Final = QuantFormat(bits=8)
"""What holds other types of GGUF files, merged weights of several types, and e4m3 on processors. A number of 6 bits is
off by about an eighth of its own step."""
_SHORT: Final = frozenset({*KEPT, "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "Q5_0", "Q5_1", "Q5_K", "Q6_K"})

Shapes = Mapping[str, tuple[int, ...]]


def formats(
    quantization: Quantization,
    spec: DecoderSpec,
    shapes: Shapes,
    places: Mapping[str, Place],
    kinds: Mapping[str, str],
    *,
    floating: bool = True,
) -> dict[str, QuantFormat]:
    """The format of every weight that is held in one, by the decoder's name for it.

    kinds: the type of each tensor that a GGUF file or a checkpoint in fp8 has; with auto a weight stays in its format
    if all of its parts have the same one, and is held in 8 bits if they are of several or of one that has no format
    here. floating: whether the device has kernels for e4m3; without them auto holds it as int8, which has.
    """
    if quantization == "none" or (quantization == "auto" and not kinds):
        return {}
    candidates = _matrices(spec, shapes)
    kept = _kept(candidates, places, kinds)
    if quantization == "auto":
        wanted = {name: ROUNDED if format_.floating and not floating else format_ for name, format_ in kept.items()}
    else:
        wanted = {name: QuantFormat(bits=8) if name == HEAD else LAYERS[quantization] for name in candidates}
        # What the file holds in as many bits already is taken as it is.
        wanted |= {name: format_ for name, format_ in kept.items() if format_.name == wanted[name].name}
    return {name: format_ for name, format_ in wanted.items() if format_.fits(candidates[name][1])}


def num_bytes(shapes: Shapes, chosen: Mapping[str, QuantFormat], element_bytes: int) -> int:
    """Bytes of all weights, a quantized copy of the table included."""
    plain = sum(math.prod(shape) for name, shape in shapes.items() if name not in chosen) * element_bytes
    sizes = {name: shapes[name if name in shapes else TABLE] for name in chosen}
    return plain + sum(format_.num_bytes(*sizes[name]) for name, format_ in chosen.items())


def layer_bytes(
    shapes: Shapes, chosen: Mapping[str, QuantFormat], element_bytes: int, num_layers: int
) -> tuple[int, ...]:
    """Bytes of the weights of each layer."""
    sizes = [0] * num_layers
    for name, shape in shapes.items():
        if name.startswith("layers."):
            only = {name: chosen[name]} if name in chosen else {}
            sizes[int(name.split(".")[1])] += num_bytes({name: shape}, only, element_bytes)
    return tuple(sizes)


def described(chosen: Mapping[str, QuantFormat]) -> str:
    """For a banner: int8, or int4, int8; "" where nothing is quantized."""
    return ", ".join(sorted({format_.name for format_ in chosen.values()}))


def _matrices(spec: DecoderSpec, shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Weights that may be quantized, and their shapes; the head too where it is the table."""
    found = {name: shape for name, shape in shapes.items() if name.endswith(".weight") and name != HEAD}
    if spec.head == "vocabulary":
        found[HEAD] = shapes.get(HEAD, shapes[TABLE])
    return found


def _kept(
    candidates: Mapping[str, tuple[int, ...]], places: Mapping[str, Place], kinds: Mapping[str, str]
) -> dict[str, QuantFormat]:
    """The format of each weight that a file holds in few bits."""
    found: dict[str, set[str]] = {}
    for name, place in places.items():
        if not name.endswith(".bias"):
            found.setdefault(place.tensor, set()).add(kinds.get(name, ""))
    found.setdefault(HEAD, found.get(TABLE, set()))
    short = {name: found[name] for name in candidates if found.get(name) and found[name] <= _SHORT}
    return {name: KEPT.get(next(iter(of)), ROUNDED) if len(of) == 1 else ROUNDED for name, of in short.items()}
