"""Which weights are held in 8 or 4 bits: decided from sizes and from what the checkpoint holds. Called by `build`.

Quantized are the matrices of the layers and the head. As int8 the head is as the others; beside fp8 and int4 it is int8
too, which is nearer to the truth than either, since all of a layer stack's work is read through it. The table of
embeddings stays in the compute type: a step reads a few rows of it only; where head and table are one, the head is a
quantized copy. Norms and biases stay as they are, and so does a matrix whose columns are no whole groups.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kvasir_api.options import Quantization
from kvasir_runtime.kernels.quantized import CODEBOOKS, FP8, GROUP, LONG_GROUP, QuantFormat
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.family import Place
from kvasir_runtime.weights.checkpoint_tensor import StoredKind

HEAD, TABLE = "head.weight", "embedding"


@dataclass(frozen=True, slots=True)
class DeviceFormats:
    """What a device has kernels for. others: names of formats whose numbers are no integers. groups: columns that share
    a scale in 8 bits that are made here; the first that a row is whole groups of. packs: what its kernels take is held
    packed alone.
    """

    others: Collection[str]
    groups: tuple[int, ...] = (GROUP,)
    packs: bool = False

    def eight_bits(self, columns: int) -> QuantFormat:
        """Of rows of so many columns."""
        return QuantFormat(bits=8, group=next((one for one in self.groups if columns % one == 0), GROUP))

    def num_bytes(self, format_: QuantFormat, rows: int, columns: int) -> int:
        """Of a weight, as it is held once it is loaded."""
        return format_.packed_bytes(rows, columns) if self.packs else format_.num_bytes(rows, columns)


CARDS: Final = DeviceFormats(("fp8", "fp4"))
PROCESSORS: Final = DeviceFormats(("fp4", *CODEBOOKS), (LONG_GROUP, GROUP), packs=True)
LAYERS: Final = {"fp8": FP8, "int4": QuantFormat(bits=4)}
"""What the layers' matrices are quantized to while they are read, but for int8."""
ROUNDED: Final = QuantFormat(bits=8)
"""What holds short numbers that no format of ours holds as they are, and merged weights of several kinds. A number of 6
bits is off by about an eighth of its own step."""
Kinds = Mapping[str, StoredKind | None]
Shapes = Mapping[str, tuple[int, ...]]


def formats(
    quantization: Quantization,
    spec: DecoderSpec,
    shapes: Shapes,
    places: Mapping[str, Place],
    kinds: Kinds,
    *,
    device: DeviceFormats = CARDS,
) -> dict[str, QuantFormat]:
    """The format of every weight that is held in one, by the decoder's name for it.

    kinds: of each tensor that a checkpoint holds in few bits; with auto a weight stays in its format if all of its
    parts have the same one, and is held in 8 bits if they are of several or of one that has no format here. device:
    auto holds numbers that it has no kernels for in integers of 8 bits, e2m1 exactly.
    """
    if quantization == "none" or (quantization == "auto" and not kinds):
        return {}
    candidates = _matrices(spec, shapes)
    kept = _kept(candidates, places, kinds)
    if quantization == "auto":
        wanted = {name: _computed_with(format_, device, candidates[name][1]) for name, format_ in kept.items()}
    else:
        wanted = {
            name: device.eight_bits(shape[1]) if quantization == "int8" or name == HEAD else LAYERS[quantization]
            for name, shape in candidates.items()
        }
        # What the file holds in as many bits already is taken as it is.
        both = [(name, one) for name, format_ in kept.items() for one in (format_, format_.widened)]
        wanted |= {name: one for name, one in both if one.name == wanted[name].name}
    return {name: format_ for name, format_ in wanted.items() if format_.fits(candidates[name][1])}


def num_bytes(shapes: Shapes, chosen: Mapping[str, QuantFormat], element_bytes: int, device: DeviceFormats) -> int:
    """Bytes of all weights, a quantized copy of the table included. device: where they are."""
    plain = sum(math.prod(shape) for name, shape in shapes.items() if name not in chosen) * element_bytes
    sizes = {name: shapes[name if name in shapes else TABLE] for name in chosen}
    return plain + sum(device.num_bytes(format_, *sizes[name]) for name, format_ in chosen.items())


def layer_bytes(
    shapes: Shapes, chosen: Mapping[str, QuantFormat], element_bytes: int, num_layers: int, device: DeviceFormats
) -> tuple[int, ...]:
    """Bytes of the weights of each layer. device: as above."""
    sizes = [0] * num_layers
    for name, shape in shapes.items():
        if name.startswith("layers."):
            only = {name: chosen[name]} if name in chosen else {}
            sizes[int(name.split(".")[1])] += num_bytes({name: shape}, only, element_bytes, device)
    return tuple(sizes)


def described(chosen: Mapping[str, QuantFormat]) -> str:
    """For a banner: int8, or int4, int8; "" where nothing is quantized."""
    return ", ".join(sorted({format_.name for format_ in chosen.values()}))


def _computed_with(format_: QuantFormat, device: DeviceFormats, columns: int) -> QuantFormat:
    """The format itself, or of 8 bits where the device has no kernels for its numbers."""
    if format_.name in device.others or not (format_.floating or format_.codebook):
        return format_
    return format_.widened if format_.e2m1 else device.eight_bits(columns)


def _matrices(spec: DecoderSpec, shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Weights that may be quantized, and their shapes; the head too where it is the table."""
    found = {name: shape for name, shape in shapes.items() if name.endswith(".weight") and name != HEAD}
    if spec.head == "vocabulary":
        found[HEAD] = shapes.get(HEAD, shapes[TABLE])
    return found


def _kept(
    candidates: Mapping[str, tuple[int, ...]], places: Mapping[str, Place], kinds: Kinds
) -> dict[str, QuantFormat]:
    """The format of each weight that a file holds in few bits. Experts have one order of columns: the file's."""
    found: dict[str, set[StoredKind | None]] = {}
    for name, place in places.items():
        if not name.endswith(".bias"):
            found.setdefault(place.tensor, set()).add(None if place.normalised else kinds.get(name))
    found.setdefault(HEAD, found.get(TABLE, set()))
    kept = dict[str, QuantFormat]()
    for name in candidates:
        of = found.get(name, set())
        if not of or None in of:
            continue
        first = next(iter(of))
        exact = first.format if first is not None and len(of) == 1 else None
        kept[name] = ROUNDED if exact is None or (exact.ordered and ".experts." in name) else exact
    return kept
