"""Fill a decoder's tensors from a checkpoint: every file's header is checked first, then pieces of all stream in.

Called by the runner. A missing and an unexpected name are both errors, as is a wrong shape, and they are found within
milliseconds, before gigabytes are read. Only safetensors and GGUF are opened: a pickle can run code.
"""

import functools
import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime import arriving, gguf
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels import quantize as quantizing
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.quantize import Quantize
from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight
from kvasir_runtime.layers.layer_specs import CHOICE_BIAS
from kvasir_runtime.models import quantization_config
from kvasir_runtime.models.config import read_document
from kvasir_runtime.models.family import Place
from kvasir_runtime.weights import (
    bitsandbytes,
    e2m1,
    fp8_scales,
    gguf_checkpoint,
    hqq,
    packed_integers,
    safetensors_checkpoint,
    sparse_24,
    stacked_experts,
)
from kvasir_runtime.weights.checkpoint_tensor import CheckpointTensor, StoredKind
from kvasir_runtime.weights.quant_formats import HEAD, TABLE
from kvasir_runtime.weights.staging import staging
from kvasir_runtime.weights.streaming import FilePiece, ring_of, stream

OnRead = Callable[[int, int], None]
"""Called after each piece with the bytes read so far and the bytes of all."""

CPU_ELEMENTS: Final = 1 << 20
CUDA_ELEMENTS: Final = 8 << 20
"""A tensor is read and converted in pieces of about this size, so that what conversion takes besides stays small."""


def load(
    model: Path,
    places: Mapping[str, Place],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    device: torch.device,
    on_read: OnRead,
    formats: Mapping[str, QuantFormat] = MappingProxyType({}),
    quantize: Quantize = quantizing.reference,
    on_host: Container[str] = (),
    unused: tuple[str, ...] = (),
    drafts: bool = False,
    stored: Iterable[CheckpointTensor] | None = None,
) -> dict[str, Weight]:
    """Tensors of the given shapes on a device, filled from the checkpoint in a directory or a GGUF file.

    places: which rows of which tensor each name of the checkpoint fills, with which part of it. formats: of those that
    are quantized while they are read, by `quantize`; a head that is the table of embeddings is made as a copy of it.
    on_host: names of those that stay on the host. unused: what names begin with that are left out where they have no
    place. drafts: of the layers that follow the decoder's own and draft tokens, in place of the others.
    stored: those of `as_stored` that may be wanted, None for all. Raises ModelError naming file and tensor.
    """
    stored = as_stored(model, drafts=drafts) if stored is None else stored
    found = list(_checked(_joined(model, stored, places), places, unused))
    missing = sorted(set(places) - {one.name for one in found})
    if missing:
        raise ModelError(f"{model}: tensor {missing[0]} is missing{_more(missing)}")
    tensors: dict[str, Weight] = {
        name: torch.empty(shape, dtype=_dtype_of(name, dtype), device="cpu" if name in on_host else device)
        for name, shape in shapes.items()
        if name not in formats
    }
    for name, format_ in formats.items():
        rows, columns = shapes[name if name in shapes else TABLE]
        tensors[name] = quantized.empty(format_, rows, columns, torch.device("cpu") if name in on_host else device)
    copies = {TABLE: [HEAD]} if HEAD in formats and HEAD not in shapes else {}
    pieces: list[FilePiece] = []
    for one in found:
        place = places[one.name]
        if place.tensor not in tensors:
            continue  # of layers that another process has
        into = [tensors[name] for name in (place.tensor, *copies.get(place.tensor, ()))]
        elements = CPU_ELEMENTS if device.type == "cpu" else CUDA_ELEMENTS
        for part, first_row in _taken(one, place):
            pieces += _pieces(part, into, first_row, elements, quantize)
    total, read = sum(piece.num_bytes for piece in pieces), 0

    def placed(piece: FilePiece) -> None:
        nonlocal read
        read += piece.num_bytes
        on_read(read, total)

    stream(pieces, staging(device), ring_of(device), placed)
    arriving.confirm(model)  # what follows looks at all files of the checkpoint
    return tensors


def _dtype_of(name: str, dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if name.endswith(CHOICE_BIAS) else dtype


def _pieces(
    stored: CheckpointTensor, into: Sequence[Weight], first_row: int, elements: int, quantize: Quantize
) -> Iterator[FilePiece]:
    """A tensor in groups of whole rows, or columns where the file has those, each of about so many elements."""
    length, unit = stored.length, _unit(stored, into)
    step = max(elements // (math.prod(stored.shape) // length) // unit, 1) * unit
    into = [_rows(weight, first_row, stored.shape[0]) for weight in into]
    for first in range(0, length, step):
        count = min(step, length - first)
        part = stored.part(first, count) if stored.part is not None else stored
        target = [
            _columns(weight, first, count) if stored.by_columns else _rows(weight, first, count) for weight in into
        ]
        yield FilePiece(
            path=stored.path,
            start=stored.start + stored.bytes_of(first),
            num_bytes=stored.bytes_of(count),
            put=functools.partial(_put, part, target, count, quantize),
            into=_place(stored, target),
        )


def _unit(stored: CheckpointTensor, into: Sequence[Weight]) -> int:
    """Rows, or columns, that are read together at least: columns in whole groups, or all that have another order."""
    unit = stored.unit
    for weight in into:
        if stored.by_columns and isinstance(weight, QuantizedWeight):
            whole = weight.format.by_row or weight.format.ordered
            unit = stored.length if whole else math.lcm(unit, weight.format.group)
    return unit


def _rows(weight: Weight, first: int, count: int) -> Weight:
    return weight.rows(first, count) if isinstance(weight, QuantizedWeight) else weight[first : first + count]


def _columns(weight: Weight, first: int, count: int) -> Weight:
    return weight.columns(first, count) if isinstance(weight, QuantizedWeight) else weight[:, first : first + count]


def _place(stored: CheckpointTensor, into: Sequence[Weight]) -> Tensor | None:
    """The memory of these rows, where they are on this host and shall be what is in the file; else None."""
    weight = into[0]
    if len(into) > 1 or not isinstance(weight, Tensor) or weight.device.type != "cpu":
        return None
    if stored.dtype != weight.dtype or stored.part is not None or stored.by_columns:
        return None
    return weight.view(-1).view(torch.uint8)


def _put(stored: CheckpointTensor, into: Sequence[Weight], count: int, quantize: Quantize, raw: Tensor) -> None:
    """Rows of a checkpoint into all that is made of them; raw is on their device."""
    for weight in into:
        if isinstance(weight, Tensor):
            weight.copy_(stored.decoded(raw, count))
        elif stored.kept is not None and stored.format and weight.format in (stored.format, stored.format.widened):
            kept = stored.kept(raw, count)
            weight.copy_(kept if kept.format == weight.format else quantized.widened(kept))
        else:
            weight.copy_(quantize(stored.decoded(raw, count), weight.format))


def kinds(model: Path, *, drafts: bool = False) -> dict[str, StoredKind]:
    """The kind of each tensor that a checkpoint holds in few bits. drafts: as of `load`. Raises ModelError."""
    return {stored.name: stored.kind for stored in _stored(model, drafts=drafts) if stored.kind is not None}


def has_drafts(model: Path) -> bool:
    """Whether a checkpoint has layers that follow the decoder's own and draft tokens. Raises ModelError."""
    return not gguf.is_gguf(model) and bool(_stored(model, drafts=True))


def as_stored(model: Path, *, drafts: bool = False) -> list[CheckpointTensor]:
    """All tensors of a checkpoint as its files have them. drafts: as of `load`. Raises ModelError."""
    if gguf.is_gguf(model):
        return gguf_checkpoint.stored(model)
    found = [one for path in safetensors_checkpoint.files(model) for one in safetensors_checkpoint.stored(path)]
    document = read_document(model)
    return [one for one in found if safetensors_checkpoint.drafts(one.name, document) == drafts]


def _stored(model: Path, *, drafts: bool = False) -> list[CheckpointTensor]:
    """All tensors of a checkpoint."""
    return _joined(model, as_stored(model, drafts=drafts), ())


def _joined(model: Path, stored: Iterable[CheckpointTensor], names: Container[str]) -> list[CheckpointTensor]:
    """Tensors with those that belong together as one. names: those that are wanted."""
    if gguf.is_gguf(model):
        return list(stored)
    found = stacked_experts.apart(stored, names)
    scheme = quantization_config.scheme(read_document(model).get("quantization_config"))

    def with_scales(found: list[CheckpointTensor]) -> list[CheckpointTensor]:
        return fp8_scales.joined(packed_integers.joined(bitsandbytes.joined(e2m1.joined(found)), scheme))

    return sparse_24.joined(hqq.joined(found), with_scales)


def _checked(
    found: Iterable[CheckpointTensor], places: Mapping[str, Place], unused: tuple[str, ...]
) -> Iterator[CheckpointTensor]:
    """Wanted tensors, after every name and shape was checked."""
    tied = "lm_head.weight" not in places
    for stored in found:
        if tied and stored.name == "lm_head.weight":
            continue
        place = places.get(stored.name)
        if place is None and (stored.spare or stored.name.startswith(unused)):
            continue
        if place is None:
            raise ModelError(f"{stored.path}: unexpected tensor {stored.name}")
        if len(place.shape) == 1:
            stored = stored.as_vector()
        if stored.shape != place.shape:
            shapes = f"{list(stored.shape)}, expected {list(place.shape)}"
            raise ModelError(f"{stored.path}: tensor {stored.name} has shape {shapes}")
        yield stored


def _taken(stored: CheckpointTensor, place: Place) -> Iterator[tuple[CheckpointTensor, int]]:
    """What a place takes of a tensor, in parts, with the row of ours at which each begins."""
    if place.head_order:
        stored = stored.reordered(place.head_order)
    if place.normalised:
        stored = stored.normalised()
    if place.columns is not None:
        if stored.format is not None and stored.format.ordered:
            raise ModelError(
                f"{stored.path}: columns of {stored.name} have an order of their own (act-order), which cannot be"
                " divided among ranks"
            )
        stored = stored.with_columns(*place.columns)
    if place.rows is None:
        yield stored, place.first_row
        return
    below, row = 0, place.first_row
    for length, (first, count) in zip(place.sections or stored.shape[:1], place.rows, strict=True):
        if count:
            yield stored.with_rows(below + first, count), row
        below, row = below + length, row + count


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
