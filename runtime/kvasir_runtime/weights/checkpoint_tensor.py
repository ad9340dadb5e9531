"""One tensor of a checkpoint, in any file format: the place of its bytes and how to decode them. Read by `loader`."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from kvasir_api.stored_bits import GROUPS
from kvasir_runtime import arriving
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKind:
    """How a tensor's numbers are short in the file. Parts of a merged weight stay as they are where theirs are equal.

    format: of ours that holds them exactly, None where there is none.
    """

    name: str
    format: QuantFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTensor:
    """name: as a Hugging Face checkpoint calls it. start, num_bytes: its place in the file at path, row after row.

    decoded: (bytes, count) -> that many rows (elements of a vector) in some floating type, where the bytes are, perhaps
    a view of them. unit: count and the first row must be multiples of it, where rows can only be decoded in groups.
    kind: of numbers that are short; kept then gives the rows in its format, exactly, where it has one.
    dtype: of its numbers, where they are of a plain type and in the order of the file. part: (first row, count) -> the
    same for some rows, where it hangs on which they are how they are decoded; then only what it gives is asked for
    decoded and kept. by_columns: the file has it column after column, and `rows` of these functions are columns, but
    in what decoded and kept return. spare: it may be left out where a model has no place for it.
    """

    name: str
    shape: tuple[int, ...]
    path: Path
    start: int
    num_bytes: int
    decoded: Callable[[Tensor, int], Tensor]
    unit: int = 1
    kind: StoredKind | None = None
    kept: Callable[[Tensor, int], QuantizedWeight] | None = None
    dtype: torch.dtype | None = None
    part: "Callable[[int, int], CheckpointTensor] | None" = None
    by_columns: bool = False
    spare: bool = False

    @property
    def format(self) -> QuantFormat | None:
        """Of ours, that of what kept gives."""
        return None if self.kind is None else self.kind.format

    @property
    def length(self) -> int:
        """Rows in the file, which are our columns where it is by columns."""
        return self.shape[1 if self.by_columns else 0]

    def bytes_of(self, count: int) -> int:
        """Of so many rows in the file, that are whole blocks of bytes together."""
        return self.num_bytes * count // self.length

    def as_vector(self) -> "CheckpointTensor":
        """The numbers of one row, read together, and one number as a vector of one; any other tensor as it is."""
        if not self.shape:
            return replace(self, shape=(1,))
        if len(self.shape) != 2 or self.shape[0] != 1:
            return self
        count = self.shape[1]
        return replace(self, shape=(count,), unit=count, decoded=lambda raw, _: self.decoded(raw, 1)[0])

    def with_rows(self, first: int, count: int) -> "CheckpointTensor":
        """Some rows as a tensor of their own. Raises ModelError where they begin or end within a group."""
        if self.by_columns:
            return self._across(first, count)
        return self._of_whole(first, count) if self.unit == self.length > count else self._along(first, count)

    def with_columns(self, first: int, count: int) -> "CheckpointTensor":
        """Some columns as a tensor of their own; raises as above."""
        return self._along(first, count) if self.by_columns else self._across(first, count)

    def _along(self, first: int, count: int) -> "CheckpointTensor":
        """Of what lies one behind the other in the file; the bytes of the rest are not read."""
        if first % self.unit or count % self.unit:
            cut = f"{first} to {first + count} of {self.length} cut a group of {self.unit}"
            raise ModelError(f"{self.path}: tensor {self.name} cannot be divided: {cut}")
        part = self.part
        return replace(
            self,
            shape=(self.shape[0], count) if self.by_columns else (count, *self.shape[1:]),
            start=self.start + self.bytes_of(first),
            num_bytes=self.bytes_of(count),
            part=None if part is None else lambda begin, number: part(first + begin, number),
        )

    def _of_whole(self, first: int, count: int) -> "CheckpointTensor":
        """Rows of what can only be decoded as a whole, as where all rows have another order in the file."""
        length, part = self.length, self.part

        def kept(raw: Tensor, _: int) -> QuantizedWeight:
            assert self.kept is not None
            return self.kept(raw, length).rows(first, count)

        return replace(
            self,
            shape=(count, *self.shape[1:]),
            unit=count,
            decoded=lambda raw, _: self.decoded(raw, length)[first : first + count],
            kept=None if self.kept is None else kept,
            dtype=None,
            part=None if part is None else lambda *_: part(0, length)._of_whole(first, count),  # noqa: SLF001 -- its own
        )

    def _across(self, first: int, count: int) -> "CheckpointTensor":
        """Of what lies beside one another: it is read whole, since most formats are decoded in whole groups only."""
        of_rows, end = self.by_columns, first + count

        def kept(raw: Tensor, number: int) -> QuantizedWeight:
            assert self.kept is not None
            found = self.kept(raw, number)
            return found.rows(first, count) if of_rows else found.columns(first, count)

        def decoded(raw: Tensor, number: int) -> Tensor:
            found = self.decoded(raw, number)
            return found[first:end] if of_rows else found[:, first:end]

        # What has groups that the border would cut is decoded, and held in another format.
        exact = self.format is not None and (of_rows or (self.format.fits(first) and self.format.fits(count)))
        part = self.part
        return replace(
            self,
            shape=(count, self.shape[1]) if of_rows else (self.shape[0], count),
            decoded=decoded,
            kind=self.kind if exact else None,
            kept=kept if exact and self.kept is not None else None,
            dtype=None,
            part=None if part is None else lambda begin, number: part(begin, number)._across(first, count),  # noqa: SLF001 -- its own
        )

    def normalised(self) -> "CheckpointTensor":
        """The same with rows of length 1, decoded. They must be whole in the file."""
        part = self.part

        def scaled(raw: Tensor, count: int) -> Tensor:
            return torch.nn.functional.normalize(self.decoded(raw, count).float())

        return replace(
            self,
            decoded=scaled,
            kind=None,
            kept=None,
            dtype=None,
            part=None if part is None else lambda first, count: part(first, count).normalised(),
        )

    def reordered(self, order: tuple[int, ...]) -> "CheckpointTensor":
        """The same with the rows of each group of len(order) in that order."""

        def turned(rows: Tensor) -> Tensor:
            index = torch.tensor(order, device=rows.device)
            plain = rows.view(torch.uint8) if rows.itemsize == 1 else rows  # torch cannot select numbers of 8 bits
            chosen = plain.reshape(-1, len(order), *rows.shape[1:]).index_select(1, index)
            return chosen.reshape(rows.shape).view(rows.dtype)

        def kept(raw: Tensor, count: int) -> QuantizedWeight:
            assert self.kept is not None
            return self.kept(raw, count).each(turned)

        part = self.part
        return replace(
            self,
            decoded=lambda raw, count: turned(self.decoded(raw, count)),
            unit=self.unit if self.by_columns else math.lcm(self.unit, len(order)),
            kept=None if self.kept is None else kept,
            dtype=None,
            part=None if part is None else lambda first, count: part(first, count).reordered(order),
        )


def widest_group(*columns: int) -> int:
    """The first of GROUPS that divides all of these, 0 where none does. Scales of wider groups are repeated for it."""
    return next((width for width in GROUPS if not any(count % width for count in columns)), 0)


def expect_dtype(stored: CheckpointTensor, *dtypes: torch.dtype) -> None:
    """Raises ModelError for a tensor of another type."""
    if stored.dtype not in dtypes:
        found, wanted = _name(stored.dtype), " or ".join(_name(dtype) for dtype in dtypes)
        raise ModelError(f"{stored.path}: tensor {stored.name} has type {found}, expected {wanted}")


def expect_matrix(stored: CheckpointTensor) -> None:
    """Raises ModelError for a tensor that has no rows and columns."""
    if len(stored.shape) != 2 or not all(stored.shape):
        raise ModelError(f"{stored.path}: tensor {stored.name} has shape {list(stored.shape)}, which fits no matrix")


def expect_shape(stored: CheckpointTensor, shape: tuple[int, ...]) -> None:
    """Raises ModelError for a tensor of another shape."""
    if stored.shape != shape:
        raise ModelError(f"{stored.path}: tensor {stored.name} has shape {list(stored.shape)}, expected {list(shape)}")


def beside(named: Mapping[str, CheckpointTensor], stem: str, matrix: str, part: str) -> CheckpointTensor:
    """Of a module, the part that belongs to its matrix, which is there. Raises ModelError where the part is not."""
    found = named.get(f"{stem}.{part}")
    if found is None:
        one = named[f"{stem}.{matrix}"]
        raise ModelError(f"{one.path}: tensor {one.name} has no {stem}.{part} beside it")
    return found


def _name(dtype: torch.dtype | None) -> str:
    return str(dtype).removeprefix("torch.")


def whole(stored: CheckpointTensor) -> Tensor:
    """A small tensor of a plain type, all of it, on the host. Raises ModelError, also for an empty one."""
    return whole_of_each([stored])[stored.name]


def whole_of_each(stored: Iterable[CheckpointTensor]) -> dict[str, Tensor]:
    """`whole` of many small tensors, by their names: each file is opened once."""
    of_file = dict[Path, list[CheckpointTensor]]()
    for one in stored:
        of_file.setdefault(one.path, []).append(one)
    found = dict[str, Tensor]()
    for path, tensors in of_file.items():
        with arriving.opened(path, max(one.start + one.num_bytes for one in tensors)) as stream:
            found |= {one.name: _read(one, stream) for one in sorted(tensors, key=lambda one: one.start)}
    return found


def _read(stored: CheckpointTensor, stream: BinaryIO) -> Tensor:
    if not stored.num_bytes:
        raise ModelError(f"{stored.path}: tensor {stored.name} is empty")
    stream.seek(stored.start)
    raw = stream.read(stored.num_bytes)
    if len(raw) != stored.num_bytes:
        raise ModelError(f"{stored.path} is truncated: tensor {stored.name}")
    return stored.decoded(torch.frombuffer(bytearray(raw), dtype=torch.uint8), stored.shape[0] if stored.shape else 1)
