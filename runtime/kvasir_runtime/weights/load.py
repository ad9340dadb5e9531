"""Fill a decoder's tensors from a checkpoint: every file's header is checked first, then the tensors stream in.

Called by the runner. A missing and an unexpected name are both errors, as is a wrong shape, and they are found within
milliseconds, before gigabytes are read. Only safetensors and GGUF are opened: a pickle can run code.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels import quantized
from kvasir_runtime.kernels.linear import Weight
from kvasir_runtime.kernels.quantized import Format
from kvasir_runtime.models.family import Place
from kvasir_runtime.weights import gguftensors, tensorfiles
from kvasir_runtime.weights.formats import HEAD, TABLE
from kvasir_runtime.weights.quantize import quantize
from kvasir_runtime.weights.stored import Stored

OnRead = Callable[[int, int], None]
"""Called after each tensor with the bytes read so far and the bytes of all."""

PIECE_ELEMENTS: Final = 4 << 20
"""A tensor is read and converted in pieces of about this size, so that what conversion takes besides stays small."""


def load(
    model: Path,
    places: Mapping[str, Place],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    device: torch.device,
    on_read: OnRead,
    formats: Mapping[str, Format] = MappingProxyType({}),
) -> dict[str, Weight]:
    """Tensors of the given shapes on a device, filled from the checkpoint in a directory or a GGUF file.

    places: which rows of which tensor each name of the checkpoint fills. formats: of those that are quantised while
    they are read; a head that is the table of embeddings is made as a copy of it. Raises ModelError naming file and
    tensor.
    """
    files = [model] if gguf.is_gguf(model) else tensorfiles.files(model)
    found = {stored.name: stored.num_bytes for path in files for stored in _checked(path, places)}
    missing = sorted(set(places) - set(found))
    if missing:
        raise ModelError(f"{model}: tensor {missing[0]} is missing{_more(missing)}")
    total, read = sum(found.values()), 0
    tensors: dict[str, Weight] = {
        name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items() if name not in formats
    }
    for name, format_ in formats.items():
        rows, columns = shapes.get(name, shapes[TABLE])
        tensors[name] = quantized.empty(format_, rows, columns, device)
    copies = {TABLE: [HEAD]} if HEAD in formats and HEAD not in shapes else {}
    for path in files:
        with _opened(path) as inside:
            for stored in inside:
                if stored.name not in places:
                    continue
                place = places[stored.name]
                for name in (place.tensor, *copies.get(place.tensor, ())):
                    _fill(tensors[name], place.first_row, stored)
                read += stored.num_bytes
                on_read(read, total)
    return tensors


def _fill(into: Weight, first_row: int, stored: Stored) -> None:
    for first, count in _pieces(stored):
        if isinstance(into, Tensor):
            into[first_row + first : first_row + first + count].copy_(stored.rows(first, count))
        elif stored.kept is not None and stored.format == into.format:
            into.rows(first_row + first, count).copy_(stored.kept(first, count))
        else:
            rows = stored.rows(first, count).to(into.scales.device)
            into.rows(first_row + first, count).copy_(quantize(rows, into.format))


def _pieces(stored: Stored) -> Iterator[tuple[int, int]]:
    """First row and number of rows of each piece."""
    num_rows, width = stored.shape[0], 1
    for size in stored.shape[1:]:
        width *= size
    step = max(PIECE_ELEMENTS // width // stored.unit, 1) * stored.unit
    for first in range(0, num_rows, step):
        yield first, min(step, num_rows - first)


def _opened(path: Path) -> AbstractContextManager[Iterator[Stored]]:
    return gguftensors.opened(path) if gguf.is_gguf(path) else tensorfiles.opened(path)


def _checked(path: Path, places: Mapping[str, Place]) -> Iterator[Stored]:
    """Wanted tensors of one file, after every name and shape in it was checked."""
    tied = "lm_head.weight" not in places
    with _opened(path) as inside:
        for stored in inside:
            if tied and stored.name == "lm_head.weight":
                continue
            place = places.get(stored.name)
            if place is None:
                raise ModelError(f"{path}: unexpected tensor {stored.name}")
            if stored.shape != place.shape:
                shapes = f"{list(stored.shape)}, expected {list(place.shape)}"
                raise ModelError(f"{path}: tensor {stored.name} has shape {shapes}")
            yield stored


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
