"""The tensors of a GGUF file, row by row in floating point, whatever they are stored in. Called by `load`."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError
from kvasir_runtime.gguf.file import Entry
from kvasir_runtime.kernels.quantized import Quantized
from kvasir_runtime.weights import ggufblocks
from kvasir_runtime.weights.formats import KEPT
from kvasir_runtime.weights.stored import Stored


@contextmanager
def opened(path: Path) -> Iterator[Iterator[Stored]]:
    """The tensors of a file under the names that Hugging Face checkpoints use. Raises ModelError."""
    file = gguf.read(path)
    head_dim = gguf.config(file)["head_dim"]
    try:
        with path.open("rb", buffering=0) as stream:
            yield _tensors(file, stream, head_dim)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error


def kinds(path: Path) -> dict[str, str]:
    """The type of each tensor that a checkpoint has, such as Q8_0. Raises ModelError."""
    entries = gguf.read(path).tensors.values()
    named = ((gguf.checkpoint_name(entry.name), entry.kind.name) for entry in entries)
    return {name: kind for name, kind in named if name is not None}


def _tensors(file: gguf.GgufFile, stream: BinaryIO, head_dim: int) -> Iterator[Stored]:
    arch = file.text("general.architecture")
    for entry in sorted(file.tensors.values(), key=lambda entry: entry.start):
        if entry.name in gguf.IGNORED:
            continue
        name = gguf.checkpoint_name(entry.name)
        if name is None:
            raise ModelError(f"{file.path}: unexpected tensor {entry.name}")
        turned = gguf.is_interleaved(entry.name, arch)
        width = head_dim if turned else 0
        yield Stored(
            name=name,
            shape=entry.shape,
            num_bytes=entry.num_bytes,
            rows=functools.partial(_rows, stream, entry, width),
            unit=width or 1,
            format=KEPT.get(entry.kind.name),
            kept=functools.partial(_kept, stream, entry, width),
        )


def _rows(stream: BinaryIO, entry: Entry, head_dim: int, first: int, count: int) -> Tensor:
    """Some rows (elements of a vector). head_dim: where their pairs lie side by side, the width of a head, else 0."""
    rows = ggufblocks.decoded(entry.kind.name, _raw(stream, entry, first, count))
    rows = rows.view(count, *entry.shape[1:])
    return halves(rows, head_dim) if head_dim else rows


def _kept(stream: BinaryIO, entry: Entry, head_dim: int, first: int, count: int) -> Quantized:
    """The same rows in their format."""
    found = ggufblocks.kept(entry.kind.name, _raw(stream, entry, first, count), count)
    if not head_dim:
        return found
    return Quantized(
        format=found.format,
        values=halves(found.values, head_dim),
        scales=halves(found.scales, head_dim),
        minima=None if found.minima is None else halves(found.minima, head_dim),
    )


def _raw(stream: BinaryIO, entry: Entry, first: int, count: int) -> Tensor:
    """Bytes of some rows, read into memory of their own: mapped pages would count as this process's while it loads."""
    width = entry.num_bytes // entry.shape[0]
    raw = bytearray(count * width)
    stream.seek(entry.start + first * width)
    if _filled(stream, raw) != len(raw):
        raise ModelError(f"tensor {entry.name} became shorter while it was read")
    return torch.frombuffer(raw, dtype=torch.uint8)


def _filled(stream: BinaryIO, raw: bytearray) -> int:
    """Bytes read into raw: one call may give fewer than were asked for."""
    view, done = memoryview(raw), 0
    while done < len(raw) and (got := stream.readinto(view[done:])):  # type: ignore[attr-defined] # a raw file has it
        done += got
    return done


def halves(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of whole heads, from pairs (0, 1), (2, 3) .. that rotate together to pairs (0, d/2), (1, d/2 + 1) .."""
    pairs = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
