"""The tensors of a GGUF file, row by row in floating point, whatever they are stored in. Called by `load`."""

import functools
from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError
from kvasir_runtime.gguf.file import Entry
from kvasir_runtime.kernels.quantized import Quantized
from kvasir_runtime.weights import ggufblocks
from kvasir_runtime.weights.formats import KEPT
from kvasir_runtime.weights.stored import Stored


def stored(path: Path) -> list[Stored]:
    """The tensors of a file under the names that Hugging Face checkpoints use, in its order. Raises ModelError."""
    file = gguf.read(path)
    return list(_tensors(file, gguf.config(file)["head_dim"]))


def kinds(path: Path) -> dict[str, str]:
    """The type of each tensor that a checkpoint has, such as Q8_0. Raises ModelError."""
    entries = gguf.read(path).tensors.values()
    named = ((gguf.checkpoint_name(entry.name), entry.kind.name) for entry in entries)
    return {name: kind for name, kind in named if name is not None}


def _tensors(file: gguf.GgufFile, head_dim: int) -> Iterator[Stored]:
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
            path=file.path,
            start=entry.start,
            num_bytes=entry.num_bytes,
            decoded=functools.partial(_rows, entry, width),
            unit=width or 1,
            format=KEPT.get(entry.kind.name),
            kept=functools.partial(_kept, entry, width),
        )


def _rows(entry: Entry, head_dim: int, raw: Tensor, count: int) -> Tensor:
    """Some rows (elements of a vector). head_dim: where their pairs lie side by side, the width of a head, else 0."""
    rows = ggufblocks.decoded(entry.kind.name, raw).view(count, *entry.shape[1:])
    return halves(rows, head_dim) if head_dim else rows


def _kept(entry: Entry, head_dim: int, raw: Tensor, count: int) -> Quantized:
    """The same rows in their format."""
    found = ggufblocks.kept(entry.kind.name, raw, count)
    if not head_dim:
        return found
    return Quantized(
        format=found.format,
        values=halves(found.values, head_dim),
        scales=halves(found.scales, head_dim),
        minima=None if found.minima is None else halves(found.minima, head_dim),
    )


def halves(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of whole heads, from pairs (0, 1), (2, 3) .. that rotate together to pairs (0, d/2), (1, d/2 + 1) .."""
    pairs = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
