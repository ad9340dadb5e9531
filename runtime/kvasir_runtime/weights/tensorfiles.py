"""Checkpoints as Hugging Face lays them out: safetensors, in one file or in shards with an index. Called by `load`."""

import functools
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Final

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.weights.stored import Stored

_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES: Final = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Stored by some exporters, recomputed or shared by everybody.
_IGNORED = ("rotary_emb.inv_freq",)
# A model that was saved without its head, as those for embeddings are, has names without the first part.
_SAVED_BARE, _FIRST_PART = ("embed_tokens.", "layers.", "norm."), "model."


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint, in order. Raises ModelError."""
    if (folder / _INDEX).exists():
        return _sharded(folder)
    if (folder / _ONE_FILE).exists():
        return [folder / _ONE_FILE]
    pickled = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if pickled:
        raise ModelError(
            f"{folder} has only pickled weights ({pickled[0]}), which can run code; convert them to safetensors"
        )
    raise ModelError(f"{folder} has neither {_ONE_FILE} nor {_INDEX}")


@contextmanager
def opened(path: Path) -> Iterator[Iterator[Stored]]:
    """The tensors of one file; what goes wrong with it while it is open is one line that names it."""
    try:
        with safe_open(path, framework="pt"):
            pass  # the library has checked the header against the size of the file
        with FileIO(path) as stream:
            yield _tensors(path, stream)
    except (SafetensorError, OSError, msgspec.DecodeError) as error:
        raise ModelError(f"{path} is truncated or damaged: {error}") from error


def _tensors(path: Path, stream: FileIO) -> Iterator[Stored]:
    """In the order of the file."""
    (length,) = struct.unpack("<Q", stream.read(8))
    header = msgspec.json.decode(stream.read(length), type=dict[str, msgspec.Raw])
    header.pop("__metadata__", None)
    entries = ((name, msgspec.json.decode(raw, type=_Entry)) for name, raw in header.items())
    for name, entry in sorted(entries, key=lambda pair: pair[1].data_offsets):
        if name.endswith(_IGNORED):
            continue
        if entry.dtype not in _DTYPES:
            raise ModelError(f"{path}: tensor {name} has type {entry.dtype}, expected one of {', '.join(_DTYPES)}")
        start, end = entry.data_offsets
        usual = _FIRST_PART + name if name.startswith(_SAVED_BARE) else name
        rows = functools.partial(_rows, stream, entry, 8 + length + start)
        yield Stored(name=usual, shape=entry.shape, num_bytes=end - start, rows=rows)


def _rows(stream: FileIO, entry: _Entry, start: int, first: int, count: int) -> Tensor:
    """Some rows, read into memory of their own: mapped pages would count as this process's while it loads."""
    width = math.prod(entry.shape[1:])
    rows = torch.empty((count, *entry.shape[1:]), dtype=_DTYPES[entry.dtype])
    view = rows.view(-1).view(torch.uint8).numpy().data
    stream.seek(start + first * width * rows.element_size())
    done = 0
    while done < len(view) and (got := stream.readinto(view[done:])):
        done += got
    if done < len(view):
        raise OSError("the file became shorter while it was read")
    return rows


def _sharded(folder: Path) -> list[Path]:
    path = folder / _INDEX
    try:
        names = sorted(set(msgspec.json.decode(path.read_bytes(), type=_Index).weight_map.values()))
    except (msgspec.DecodeError, OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: {error}") from error
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelError(f"{path}: {name!r} is not the name of a safetensors file in this directory")
        if not (folder / name).exists():
            raise ModelError(f"{folder / name}, named by the index, does not exist")
    return [folder / name for name in names]
