"""Read a GGUF file's metadata and the place of each tensor. No tensor is read here.

Called in both processes of a pod (the API needs the tokenizer inside, the engine config and weights), so it imports no
torch. Every count, length and offset is checked against the bytes that are there before it is used: the largest thing
that a hostile file can make us build is a small multiple of its own size. Format: versions 2 and 3, little-endian, as
specified in ggml's docs/gguf.md.
"""

import mmap
import struct
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kvasir_runtime import arriving
from kvasir_runtime.errors import ModelError

MAGIC: Final = b"GGUF"
SUFFIX: Final = ".gguf"
MAX_DIMENSIONS: Final = 4
MAX_NAME_BYTES: Final = 65_535
_DEFAULT_ALIGNMENT: Final = 32
_STRING, _ARRAY = 8, 9
# Metadata types by number: how struct and array spell them.
_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class ShortFileError(ModelError):
    """A file that ends before its header does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgmlType:
    """How a type of tensor is stored: num_bytes for each block of `block` consecutive elements of a row."""

    name: str
    block: int
    num_bytes: int


KINDS: Final = {
    0: GgmlType(name="F32", block=1, num_bytes=4),
    1: GgmlType(name="F16", block=1, num_bytes=2),
    2: GgmlType(name="Q4_0", block=32, num_bytes=18),
    3: GgmlType(name="Q4_1", block=32, num_bytes=20),
    6: GgmlType(name="Q5_0", block=32, num_bytes=22),
    7: GgmlType(name="Q5_1", block=32, num_bytes=24),
    8: GgmlType(name="Q8_0", block=32, num_bytes=34),
    10: GgmlType(name="Q2_K", block=256, num_bytes=84),
    11: GgmlType(name="Q3_K", block=256, num_bytes=110),
    12: GgmlType(name="Q4_K", block=256, num_bytes=144),
    13: GgmlType(name="Q5_K", block=256, num_bytes=176),
    14: GgmlType(name="Q6_K", block=256, num_bytes=210),
    20: GgmlType(name="IQ4_NL", block=32, num_bytes=18),
    23: GgmlType(name="IQ4_XS", block=256, num_bytes=136),
    30: GgmlType(name="BF16", block=1, num_bytes=2),
}
# What exists besides, so that a refusal can say its name.
_OTHERS: Final = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S", 24: "I8",
    25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor. shape: rows first, as everywhere but in the file; start: its first byte in the file at path."""

    name: str
    path: Path
    shape: tuple[int, ...]
    kind: GgmlType
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """metadata: key to bool, int, float, str, array of numbers or list of str. tensors: by their name in the file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorEntry]

    def text(self, key: str, default: str = "") -> str:
        """A string of the metadata. Raises ModelError where it is something else."""
        return str(self._value(key, default, str, "a string"))

    def integer(self, key: str, default: int | None = None) -> int:
        """A number of the metadata, default where it is missing; without one that is a ModelError."""
        if default is None and key not in self.metadata:
            raise ModelError(f"{self.path}: {key} is missing")
        value = self._value(key, default, int, "an integer")
        if isinstance(value, bool):
            raise ModelError(f"{self.path}: {key} is {value!r}, expected an integer")
        return int(value)

    def number(self, key: str, default: float) -> float:
        """A floating-point number of the metadata."""
        return float(self._value(key, default, (int, float), "a number"))

    def flag(self, key: str, default: bool) -> bool:
        """A boolean of the metadata."""
        return bool(self._value(key, default, bool, "true or false"))

    def texts(self, key: str) -> list[str]:
        """A list of strings of the metadata, empty where it is missing."""
        value = self.metadata.get(key, [])
        if not isinstance(value, list):
            raise ModelError(f"{self.path}: {key} is not a list of strings")
        return value

    def numbers(self, key: str) -> "array[Any]":
        """A list of numbers of the metadata, empty where it is missing."""
        value = self.metadata.get(key, array("i"))
        if not isinstance(value, array):
            raise ModelError(f"{self.path}: {key} is not a list of numbers")
        return value

    def floats(self, name: str) -> tuple[float, ...] | None:
        """A small F32 tensor as numbers, None where the file has none of that name."""
        entry = self.tensors.get(name)
        if entry is None:
            return None
        if entry.kind.name != "F32" or len(entry.shape) != 1 or entry.num_bytes > MAX_NAME_BYTES:
            raise ModelError(f"{self.path}: tensor {name} is not a short list of F32")
        with arriving.opened(entry.path, entry.start + entry.num_bytes) as stream:
            stream.seek(entry.start)
            return struct.unpack(f"<{entry.shape[0]}f", stream.read(entry.num_bytes))

    def _value(self, key: str, default: Any, kind: type | tuple[type, ...], expected: str) -> Any:
        value = self.metadata.get(key, default)
        if not isinstance(value, kind):
            raise ModelError(f"{self.path}: {key} is {str(value)[:60]!r}, expected {expected}")
        return value


def is_gguf(path: Path) -> bool:
    """Whether a path names a GGUF file, by its ending: what is inside is for `read` to say."""
    return path.suffix.lower() == SUFFIX and path.is_file()


def has_header(path: Path) -> bool:
    """Whether the beginning of a file has all that stands before its tensors, or is none of a GGUF file."""
    try:
        read(path)
    except ShortFileError:
        return False
    except ModelError:
        return True  # the tensors are not there yet; or `read` of the whole file says the same
    return True


def read(path: Path) -> GgufFile:
    """The file's metadata and tensors. Raises ModelError with one line that names the file and what is wrong."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _Reader(path, mapped, arriving.size(path)).file()
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelError(f"{path} is not a GGUF file: {error}") from error


class _Reader:
    """A place in the mapped bytes that only moves forward."""

    def __init__(self, path: Path, mapped: mmap.mmap, file_bytes: int) -> None:
        """file_bytes: when all of the file is there, of which as much is mapped as has come."""
        self._path, self._bytes, self._size, self._at = path, mapped, len(mapped), 0
        self._file_bytes = file_bytes

    def file(self) -> GgufFile:
        if self._bytes[:4] != MAGIC:
            raise ModelError(f"{self._path} is not a GGUF file: it does not begin with {MAGIC.decode()}")
        self._at = 4
        version = self._number("I")
        if version not in (2, 3):
            order = "; it seems to be big-endian" if version and version % 65536 == 0 else ""
            raise ModelError(f"{self._path}: GGUF version {version} is not supported, expected 2 or 3{order}")
        num_tensors, num_keys = self._number("Q"), self._number("Q")
        self._fits(num_keys, 13, "metadata keys")
        metadata = dict[str, Any]()
        for _ in range(num_keys):
            key = self._name("metadata key")
            if key in metadata:
                raise ModelError(f"{self._path}: metadata key {key} occurs twice")
            metadata[key] = self._value(self._number("I"), key)
        self._fits(num_tensors, 32, "tensors")
        found = [self._tensor() for _ in range(num_tensors)]
        return GgufFile(path=self._path, metadata=metadata, tensors=self._placed(found, metadata))

    def _placed(self, found: list[TensorEntry], metadata: Mapping[str, Any]) -> dict[str, TensorEntry]:
        """Tensors with their places in the file instead of in its data, all checked to lie inside."""
        align = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(align, int) or align < 8 or align > 2**20 or align & (align - 1):
            raise ModelError(f"{self._path}: general.alignment is {align!r}, expected a power of two from 8 on")
        first, placed = -(-self._at // align) * align, dict[str, TensorEntry]()
        for entry in found:
            if entry.name in placed:
                raise ModelError(f"{self._path}: tensor {entry.name} occurs twice")
            start = first + entry.start
            if entry.start % align or start + entry.num_bytes > self._file_bytes:
                raise ModelError(
                    f"{self._path} is truncated or damaged: tensor {entry.name} takes bytes {start:,} to"
                    f" {start + entry.num_bytes:,} of {self._file_bytes:,}"
                )
            placed[entry.name] = replace(entry, start=start)
        return placed

    def _tensor(self) -> TensorEntry:
        name, dimensions = self._name("tensor's name"), self._number("I")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise ModelError(f"{self._path}: tensor {name} has {dimensions} dimensions, expected 1 to {MAX_DIMENSIONS}")
        sizes = [self._number("Q") for _ in range(dimensions)]
        number, start = self._number("I"), self._number("Q")
        kind = KINDS.get(number)
        if kind is None:
            said = _OTHERS.get(number, f"number {number}")
            expected = ", ".join(each.name for each in KINDS.values())
            raise ModelError(
                f"{self._path}: tensor {name} has type {said}, which is not supported; expected {expected}"
            )
        count = 1
        for size in sizes:
            count *= size
        if not count or sizes[0] % kind.block:
            raise ModelError(f"{self._path}: tensor {name} of sizes {sizes} has no whole blocks of {kind.block}")
        num_bytes = count // kind.block * kind.num_bytes
        shape = tuple(reversed(sizes))
        return TensorEntry(name=name, path=self._path, shape=shape, kind=kind, start=start, num_bytes=num_bytes)

    def _value(self, kind: int, key: str) -> Any:
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._string(key)
        if kind != _ARRAY:
            raise ModelError(f"{self._path}: {key} has the unknown type {kind}")
        kind, count = self._number("I"), self._number("Q")
        if kind == _STRING:
            self._fits(count, 8, key)
            return self._strings(count, key)
        if kind not in _SCALARS:
            raise ModelError(f"{self._path}: {key} is an array of the unsupported type {kind}")
        code = _SCALARS[kind]
        width = struct.calcsize(f"<{code}")
        self._fits(count, width, key)
        numbers = array("B" if code == "?" else code)
        numbers.frombytes(self._bytes[self._at : self._at + count * width])
        self._at += count * width
        return numbers

    def _strings(self, count: int, key: str) -> list[str]:
        """Vocabularies have hundreds of thousands: one pass with nothing but slices."""
        data, at, size, found = self._bytes, self._at, self._size, list[str]()
        unpack: Callable[..., tuple[int]] = struct.Struct("<Q").unpack_from
        try:
            for _ in range(count):
                end = at + 8 + unpack(data, at)[0]
                if end > size:
                    raise self._short(key)
                found.append(data[at + 8 : end].decode())
                at = end
        except struct.error as error:
            raise self._short(key) from error
        except UnicodeDecodeError as error:
            raise ModelError(f"{self._path}: {key}[{len(found)}] is not UTF-8") from error
        self._at = at
        return found

    def _name(self, what: str) -> str:
        return self._string(what, MAX_NAME_BYTES)

    def _string(self, what: str, limit: int | None = None) -> str:
        length = self._number("Q")
        if limit is not None and length > limit:
            raise ModelError(f"{self._path} is damaged: a {what} of {length:,} bytes, expected at most {limit:,}")
        self._fits(length, 1, what)
        raw = self._bytes[self._at : self._at + length]
        self._at += length
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self._path}: {what} is not UTF-8") from error

    def _number(self, code: str) -> Any:
        form = f"<{code}"
        width = struct.calcsize(form)
        self._fits(1, width, "header")
        (value,) = struct.unpack_from(form, self._bytes, self._at)
        self._at += width
        return value

    def _fits(self, count: int, least_bytes: int, what: str) -> None:
        if count * least_bytes > self._size - self._at:
            raise self._short(what)

    def _short(self, what: str) -> ShortFileError:
        return ShortFileError(f"{self._path} is truncated or damaged: it ends before the end of its {what}")
