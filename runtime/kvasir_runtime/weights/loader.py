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

from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels import quantize as quantizing
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.quantize import Quantize
from kvasir_runtime.kernels.quantized import QuantFormat
from kvasir_runtime.models.family import Place
from kvasir_runtime.weights import fp8_scales, gguf_checkpoint, safetensors_checkpoint
from kvasir_runtime.weights.checkpoint_tensor import CheckpointTensor
from kvasir_runtime.weights.quant_formats import HEAD, KEPT, TABLE
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
) -> dict[str, Weight]:
    """Tensors of the given shapes on a device, filled from the checkpoint in a directory or a GGUF file.

    places: which rows of which tensor each name of the checkpoint fills. formats: of those that are quantized while
    they are read, by `quantize`; a head that is the table of embeddings is made as a copy of it. on_host: names of
    those that stay on the host. Raises ModelError naming file and tensor.
    """
    found = list(_checked(_stored(model), places))
    missing = sorted(set(places) - {stored.name for stored in found})
    if missing:
        raise ModelError(f"{model}: tensor {missing[0]} is missing{_more(missing)}")
    tensors: dict[str, Weight] = {
        name: torch.empty(shape, dtype=dtype, device="cpu" if name in on_host else device)
        for name, shape in shapes.items()
        if name not in formats
    }
    for name, format_ in formats.items():
        rows, columns = shapes.get(name, shapes[TABLE])
        tensors[name] = quantized.empty(format_, rows, columns, torch.device("cpu") if name in on_host else device)
    copies = {TABLE: [HEAD]} if HEAD in formats and HEAD not in shapes else {}
    pieces: list[FilePiece] = []
    for stored in found:
        place = places[stored.name]
        into = [tensors[name] for name in (place.tensor, *copies.get(place.tensor, ()))]
        elements = CPU_ELEMENTS if device.type == "cpu" else CUDA_ELEMENTS
        pieces += _pieces(stored, into, place.first_row, elements, quantize)
    total, read = sum(stored.num_bytes for stored in found), 0

    def placed(piece: FilePiece) -> None:
        nonlocal read
        read += piece.num_bytes
        on_read(read, total)

    stream(pieces, staging(device), ring_of(device), placed)
    return tensors


def _pieces(
    stored: CheckpointTensor, into: Sequence[Weight], first_row: int, elements: int, quantize: Quantize
) -> Iterator[FilePiece]:
    """A tensor in groups of whole rows, each of about so many elements."""
    num_rows, width = stored.shape[0], math.prod(stored.shape[1:])
    step = max(elements // width // stored.unit, 1) * stored.unit
    for first in range(0, num_rows, step):
        count = min(step, num_rows - first)
        part = stored.part(first, count) if stored.part is not None else stored
        yield FilePiece(
            path=stored.path,
            start=stored.start + first * stored.row_bytes,
            num_bytes=count * stored.row_bytes,
            put=functools.partial(_put, part, into, first_row + first, count, quantize),
            into=_place(stored, into, first_row + first, count),
        )


def _place(stored: CheckpointTensor, into: Sequence[Weight], first_row: int, count: int) -> Tensor | None:
    """The memory of these rows, where they are on this host and shall be what is in the file; else None."""
    weight = into[0]
    if len(into) > 1 or not isinstance(weight, Tensor) or weight.device.type != "cpu":
        return None
    if stored.dtype != weight.dtype or stored.part is not None:
        return None
    return weight[first_row : first_row + count].view(-1).view(torch.uint8)


def _put(
    stored: CheckpointTensor, into: Sequence[Weight], first_row: int, count: int, quantize: Quantize, raw: Tensor
) -> None:
    """Rows of a checkpoint into all that is made of them; raw is on their device."""
    for weight in into:
        if isinstance(weight, Tensor):
            weight[first_row : first_row + count].copy_(stored.decoded(raw, count))
        elif stored.kept is not None and stored.format == weight.format:
            weight.rows(first_row, count).copy_(stored.kept(raw, count))
        else:
            weight.rows(first_row, count).copy_(quantize(stored.decoded(raw, count), weight.format))


def kinds(model: Path) -> dict[str, str]:
    """The type of each tensor that a checkpoint holds in few bits, as `quant_formats` calls it. Raises ModelError."""
    if gguf.is_gguf(model):
        return gguf_checkpoint.kinds(model)
    names = {format_: kind for kind, format_ in KEPT.items()}
    return {stored.name: names[stored.format] for stored in _stored(model) if stored.format is not None}


def _stored(model: Path) -> list[CheckpointTensor]:
    """All tensors of a checkpoint."""
    if gguf.is_gguf(model):
        return list(gguf_checkpoint.stored(model))
    return fp8_scales.joined(
        stored for path in safetensors_checkpoint.files(model) for stored in safetensors_checkpoint.stored(path)
    )


def _checked(found: Iterable[CheckpointTensor], places: Mapping[str, Place]) -> Iterator[CheckpointTensor]:
    """Wanted tensors, after every name and shape was checked."""
    tied = "lm_head.weight" not in places
    for stored in found:
        if tied and stored.name == "lm_head.weight":
            continue
        place = places.get(stored.name)
        if place is None:
            raise ModelError(f"{stored.path}: unexpected tensor {stored.name}")
        if stored.shape != place.shape:
            shapes = f"{list(stored.shape)}, expected {list(place.shape)}"
            raise ModelError(f"{stored.path}: tensor {stored.name} has shape {shapes}")
        yield stored.reordered(place.head_order) if place.head_order else stored


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
