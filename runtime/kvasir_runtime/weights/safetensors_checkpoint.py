"""Checkpoints in Hugging Face's layout: safetensors, in one file or in shards with an index. Called by `loader`."""

import functools
import math
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from kvasir_runtime import arriving
from kvasir_runtime.errors import ModelError
from kvasir_runtime.weights.checkpoint_tensor import CheckpointTensor

_ONE_FILE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_DTYPES: Final = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I8": torch.int8,
    "U8": torch.uint8,
    "I32": torch.int32,
    "I64": torch.int64,
}
MAX_HEADER_BYTES: Final = 100_000_000
"""As the library has it."""
MOST_SHOWN: Final = 200
"""Characters of a name, in an error."""
_MOST: Final = (1 << 63) - 1
"""Of a dimension."""
_MOST_DIMENSIONS: Final = 64
"""As torch has it; the product of millions of them takes minutes."""
# Stored by some exporters, computed again or shared by all layers; and adapters beside weights, as Jina stores them.
_IGNORED = ("rotary_emb.inv_freq", ".parametrizations.weight.0.lora_A", ".parametrizations.weight.0.lora_B")
# Which ids a head that drafts has; no weights, and read by `integers`.
_ID_MAPS = ("d2t", "t2d")
# A model that was saved without its head, as those for embeddings are, has names without the first part.
_SAVED_BARE: Final = {
    "model.": ("embed_tokens.", "layers.", "norm."),
    "transformer.": ("word_embeddings.", "word_embeddings_layernorm.", "h.", "ln_f."),
}
# Of checkpoints with images the text part is read, which older and newer ones name differently.
_TEXT_PART = (("language_model.model.", "model."), ("language_model.", ""), ("model.language_model.", "model."))
# What encoders were saved as a part of; the first part of their names is the family's.
_ENCODER_PART = ("bert.", "roberta.", "distilbert.", "mpnet.", "nomic_bert.", "new.", "gte.")
_MODERNBERT_PART = ("model.embeddings.", "model.final_norm.")
_OTHER_ENDINGS = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    ".parametrizations.weight.original": ".weight",
}
_DRAFTING_PART = "mtp."
_OTHER_PARTS = (
    "vision_tower.",
    "vision_model.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.visual.",
    "model.vision_model.",
    "model.multi_modal_projector.",
)


_LAYER: Final = re.compile(r"model\.layers\.(\d{1,9})\.")


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


_Count = Annotated[int, msgspec.Meta(ge=0, le=_MOST)]


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: Annotated[tuple[_Count, ...], msgspec.Meta(max_length=_MOST_DIMENSIONS)]
    data_offsets: tuple[_Count, _Count]


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
    raise ModelError(f"{folder} has neither {_ONE_FILE} nor {_INDEX}; put the weights there")


def stored(path: Path) -> list[CheckpointTensor]:
    """The tensors of one file, in its order; what is wrong with it is one line that names it. Raises ModelError."""
    try:
        if not arriving.is_here(path):
            return list(_tensors(path))  # each range is checked with the bytes that there will be
        with safe_open(path, framework="pt"):
            pass  # the library has checked the header: its size, its ranges, that they fill the file without overlaps
        return list(_tensors(path))
    except (SafetensorError, OSError, msgspec.DecodeError, struct.error) as error:
        raise ModelError(f"{path} is truncated or damaged: {error}") from error


def drafts(name: str, config: Mapping[str, Any]) -> bool:
    """Whether a tensor is of a layer that drafts tokens: by its name, or as one that follows the decoder's own, of
    which the config says how many there are.
    """
    if name.startswith(_DRAFTING_PART):
        return True
    first, number = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    layer = _LAYER.match(name)
    if layer is None or not isinstance(first, int) or not isinstance(number, int):
        return False
    return first <= int(layer[1]) < first + number


def names(folder: Path) -> frozenset[str]:
    """Of all tensors of a checkpoint. Raises ModelError."""
    return frozenset(one.name for path in files(folder) for one in stored(path))


def totals(folder: Path) -> tuple[int, int]:
    """How many tensors a checkpoint has, and how many numbers in all of them, of whatever type. Raises ModelError."""
    tensors = numbers = 0
    for path in files(folder):
        try:
            _, found = _entries(path)
            tensors += len(found)
            numbers += sum(math.prod(entry.shape) for _, entry in found)
        except (OSError, msgspec.DecodeError, struct.error) as error:
            raise ModelError(f"{path} is truncated or damaged: {error}") from error
    return tensors, numbers


def integers(folder: Path, name: str) -> Tensor | None:
    """A tensor of int64 of a checkpoint as it is, or None where there is none of that name. Raises ModelError."""
    for path in files(folder):
        try:
            with safe_open(arriving.awaited(path), framework="pt") as opened:
                if name not in opened.keys():  # noqa: SIM118 -- no mapping
                    continue
                found: Tensor = opened.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path} is truncated or damaged: {error}") from error
        if found.dtype != torch.int64 or found.dim() != 1:
            raise ModelError(f"{path}: tensor {name} is {found.dtype} of shape {list(found.shape)}, expected int64 ids")
        return found
    return None


def header(path: Path) -> bytes:
    """The bytes before the tensors: length and JSON. Raises OSError, or struct.error where there are none."""
    with path.open("rb") as stream:
        begin = stream.read(8)
        (length,) = struct.unpack("<Q", begin)
        if length > min(MAX_HEADER_BYTES, arriving.size(path)):
            raise OSError(f"a header of {length:,} bytes")
        return begin + stream.read(length)


def places(path: Path) -> list[tuple[int, int]]:
    """Where the bytes of each tensor of a file begin, and how many they are, whatever it is for. Raises OSError,
    struct.error, or msgspec.DecodeError where the header is none.
    """
    begin, entries = _entries(path)
    return [(begin + start, end - start) for start, end in (entry.data_offsets for _, entry in entries)]


def _entries(path: Path) -> tuple[int, list[tuple[str, _Entry]]]:
    """The bytes of a file's header, and the tensors that it names, in the order of theirs. Raises OSError where these
    are not in the file or not one behind the other, struct.error, and msgspec.DecodeError, also for JSON that is nested
    too deep or is no text, for which the library has errors of other kinds.
    """
    raw = header(path)
    try:
        found = msgspec.json.decode(raw[8:], type=dict[str, msgspec.Raw])
        found.pop("__metadata__", None)
        decoded = ((name, msgspec.json.decode(entry, type=_Entry)) for name, entry in found.items())
        entries = sorted(decoded, key=lambda pair: pair[1].data_offsets)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(str(error)) from error
    taken, size = 0, arriving.size(path) - len(raw)
    for name, entry in entries:
        start, end = entry.data_offsets
        if start < taken:
            raise OSError(f"tensor {name[:MOST_SHOWN]!r} begins at byte {start:,}, within another one")
        if not start <= end <= size:
            raise OSError(f"tensor {name[:MOST_SHOWN]!r} takes bytes {start:,} to {end:,} of {size:,}")
        taken = end
    return len(raw), entries


def _tensors(path: Path) -> Iterator[CheckpointTensor]:
    begin, entries = _entries(path)  # also of a whole file: it may have been replaced since the library looked
    for name, entry in entries:
        if name in _ID_MAPS or name.endswith(_IGNORED) or name.startswith(_OTHER_PARTS):
            continue
        if entry.dtype not in _DTYPES:
            what = f"tensor {name[:MOST_SHOWN]!r} has type {entry.dtype[:MOST_SHOWN]!r}"
            raise ModelError(f"{path}: {what}, expected one of {', '.join(_DTYPES)}")
        start, end = entry.data_offsets
        dtype = _DTYPES[entry.dtype]
        if end - start != math.prod(entry.shape) * dtype.itemsize:
            shape = [*entry.shape]
            raise OSError(f"tensor {name[:MOST_SHOWN]!r} has {end - start:,} bytes, not those of {entry.dtype} {shape}")
        yield CheckpointTensor(
            name=_text_name(name),
            shape=entry.shape,
            path=path,
            start=begin + start,
            num_bytes=end - start,
            decoded=functools.partial(_decoded, dtype, entry.shape[1:]),
            dtype=dtype,
        )


def _text_name(name: str) -> str:
    """What a checkpoint of the text model alone calls a tensor."""
    for part in _ENCODER_PART:
        name = name.removeprefix(part)
    for theirs, ours in _OTHER_ENDINGS.items():
        if name.endswith(theirs):
            return name.removesuffix(theirs) + ours
    if name.startswith(_MODERNBERT_PART):
        return name.removeprefix("model.")
    for theirs, ours in _TEXT_PART:
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return next((first + name for first, bare in _SAVED_BARE.items() if name.startswith(bare)), name)


def _decoded(dtype: torch.dtype, row: tuple[int, ...], raw: Tensor, count: int) -> Tensor:
    return raw.view(dtype).view(count, *row)


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
            raise ModelError(
                f"{folder / name}, named by the index, does not exist; put the file there, or fetch the model again"
            )
    return [folder / name for name in names]
