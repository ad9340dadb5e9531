"""The tensors of a GGUF file, row by row in floating point, whatever they are stored in. Called by `loader`."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from torch import Tensor

from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError
from kvasir_runtime.gguf.reader import TensorEntry
from kvasir_runtime.kernels.quantized import QuantizedWeight
from kvasir_runtime.weights import gguf_dequant
from kvasir_runtime.weights.checkpoint_tensor import CheckpointTensor, StoredKind

_PLAIN: Final = ("F32", "F16", "BF16")


def stored(path: Path) -> list[CheckpointTensor]:
    """The tensors of a file under the names that Hugging Face checkpoints use, in its order. Raises ModelError."""
    file = gguf.read(path)
    return list(_tensors(file, gguf.config(file)["head_dim"]))


def kind_of(name: str) -> StoredKind | None:
    """Of a type of GGUF, such as Q8_0; None for those that are plain."""
    return None if name in _PLAIN else StoredKind(name=name, format=gguf_dequant.KEPT.get(name))


def _tensors(file: gguf.GgufFile, head_dim: int) -> Iterator[CheckpointTensor]:
    arch = file.text("general.architecture")
    for entry in sorted(file.tensors.values(), key=lambda entry: (entry.path, entry.start)):
        if entry.name in gguf.IGNORED:
            continue
        names = _names(file, entry)
        if not names:
            raise ModelError(f"{entry.path}: unexpected tensor {entry.name}")
        turned = gguf.is_interleaved(entry.name, arch)
        width, less = head_dim if turned else 0, 1 if gguf.norms_are_whole(entry.name, arch) else 0
        for name, part in zip(names, _parts(entry, len(names)), strict=True):
            yield CheckpointTensor(
                name=name,
                shape=part.shape,
                path=part.path,
                start=part.start,
                num_bytes=part.num_bytes,
                decoded=functools.partial(_rows, part, width, less),
                unit=width or 1,
                kind=kind_of(part.kind.name),
                kept=functools.partial(_kept, part, width),
            )


def _names(file: gguf.GgufFile, entry: TensorEntry) -> tuple[str, ...]:
    """What checkpoints call the parts of a tensor."""
    arch = file.text("general.architecture")
    experts = file.integer(f"{arch}.expert_count", 0)
    if gguf.holds_experts(entry.name) and (len(entry.shape) != 3 or entry.shape[0] != experts):
        shape = f"{list(entry.shape)}, expected the matrices of {experts} experts"
        raise ModelError(f"{file.path}: tensor {entry.name} has shape {shape}")
    return gguf.checkpoint_names(entry.name, arch, experts)


def _parts(entry: TensorEntry, experts: int) -> Iterator[TensorEntry]:
    """A tensor, or each expert's matrix of one that holds all; a gate that is a vector in the file is a row."""
    if not gguf.holds_experts(entry.name):
        is_row = entry.name.endswith("ffn_gate_inp_shexp.weight") and len(entry.shape) == 1
        yield replace(entry, shape=(1, *entry.shape)) if is_row else entry
        return
    each = entry.num_bytes // experts
    for expert in range(experts):
        yield replace(entry, shape=entry.shape[1:], start=entry.start + expert * each, num_bytes=each)


def _rows(entry: TensorEntry, head_dim: int, less: int, raw: Tensor, count: int) -> Tensor:
    """Some rows (elements of a vector). head_dim: where their pairs lie side by side, the width of a head, else 0.

    less: what a checkpoint's numbers are less.
    """
    rows = gguf_dequant.decoded(entry.kind.name, raw).view(count, *entry.shape[1:])
    if less:
        return rows.float() - less
    return halves(rows, head_dim) if head_dim else rows


def _kept(entry: TensorEntry, head_dim: int, raw: Tensor, count: int) -> QuantizedWeight:
    """The same rows in their format."""
    found = gguf_dequant.kept(entry.kind.name, raw, count)
    if not head_dim:
        return found
    return found.each(lambda rows: halves(rows, head_dim))


def halves(rows: Tensor, head_dim: int) -> Tensor:
    """Rows of whole heads, from pairs (0, 1), (2, 3) .. that rotate together to pairs (0, d/2), (1, d/2 + 1) .."""
    pairs = rows.view(-1, head_dim // 2, 2, *rows.shape[1:])
    return pairs.transpose(1, 2).reshape(rows.shape)
