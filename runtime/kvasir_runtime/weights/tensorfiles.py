"""Checkpoints as Hugging Face lays them out: safetensors, in one file or in shards with an index. Called by `load`."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.weights.stored import Stored

_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# Stored by some exporters, recomputed or shared by everybody.
_IGNORED = ("rotary_emb.inv_freq",)
# A model that was saved without its head, as those for embeddings are, has names without the first part.
_SAVED_BARE, _FIRST_PART = ("embed_tokens.", "layers.", "norm."), "model."


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


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
        with safe_open(path, framework="pt") as file:
            yield _tensors(path, file)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is truncated or damaged: {error}") from error


def _tensors(path: Path, file: Any) -> Iterator[Stored]:
    for name in file.keys():  # noqa: SIM118 -- not a mapping
        if name.endswith(_IGNORED):
            continue
        part = file.get_slice(name)
        shape, dtype = tuple(part.get_shape()), part.get_dtype()
        if dtype not in _DTYPES:
            raise ModelError(f"{path}: tensor {name} has type {dtype}, expected one of {', '.join(_DTYPES)}")
        count = 1
        for size in shape:
            count *= size
        usual = _FIRST_PART + name if name.startswith(_SAVED_BARE) else name
        yield Stored(name=usual, shape=shape, num_bytes=count * _DTYPES[dtype], rows=functools.partial(_rows, part))


def _rows(part: Any, first: int, count: int) -> Tensor:
    rows: Tensor = part[first : first + count]
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
