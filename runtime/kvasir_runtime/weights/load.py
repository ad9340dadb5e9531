"""Fill a decoder's tensors from a checkpoint: every file's header is checked first, then the tensors stream in.

Called by the runner. A missing and an unexpected name are both errors, as is a wrong shape, and they are found within
milliseconds, before gigabytes are read. Only safetensors is opened: a pickle can run code.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvasir_runtime.errors import ModelError
from kvasir_runtime.models.family import Place

OnRead = Callable[[int, int], None]
"""Called after each tensor with the bytes read so far and the bytes of all."""

_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES: Final = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
# Stored by some exporters, recomputed or shared by everybody.
_IGNORED = ("rotary_emb.inv_freq",)


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def load(
    folder: Path,
    places: Mapping[str, Place],
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    device: torch.device,
    on_read: OnRead,
) -> dict[str, Tensor]:
    """Tensors of the given shapes on a device, filled from the checkpoint in a folder.

    places: which rows of which tensor each name of the checkpoint fills. Raises ModelError naming file and tensor.
    """
    files = _files(folder)
    found = {name: (path, bytes_) for path in files for name, bytes_ in _headers(path, places)}
    missing = sorted(set(places) - set(found))
    if missing:
        raise ModelError(f"{folder}: tensor {missing[0]} is missing{_more(missing)}")
    total, read = sum(bytes_ for _, bytes_ in found.values()), 0
    tensors = {name: torch.empty(shape, dtype=dtype, device=device) for name, shape in shapes.items()}
    for path in files:
        with _opened(path) as file:
            for name in file.keys():  # noqa: SIM118 -- not a mapping
                if name not in places:
                    continue
                place, part = places[name], file.get_tensor(name)
                tensors[place.tensor][place.first_row : place.first_row + place.shape[0]].copy_(part)
                read += found[name][1]
                on_read(read, total)
    return tensors


def _files(folder: Path) -> list[Path]:
    """The weight files of a checkpoint, in order."""
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


def _headers(path: Path, places: Mapping[str, Place]) -> Iterator[tuple[str, int]]:
    """Wanted names in one file and their bytes, after every name, shape and type in it was checked."""
    tied = "lm_head.weight" not in places
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118 -- not a mapping
            if name.endswith(_IGNORED) or (tied and name == "lm_head.weight"):
                continue
            place = places.get(name)
            if place is None:
                raise ModelError(f"{path}: unexpected tensor {name}")
            part = file.get_slice(name)
            shape, dtype = tuple(part.get_shape()), part.get_dtype()
            if shape != place.shape:
                raise ModelError(f"{path}: tensor {name} has shape {list(shape)}, expected {list(place.shape)}")
            if dtype not in _DTYPES:
                raise ModelError(f"{path}: tensor {name} has type {dtype}, expected one of {', '.join(_DTYPES)}")
            count = 1
            for size in shape:
                count *= size
            yield name, count * _DTYPES[dtype]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """A safetensors file; what goes wrong with it is one line that names it."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"{path} is truncated or damaged: {error}") from error


def _more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""
