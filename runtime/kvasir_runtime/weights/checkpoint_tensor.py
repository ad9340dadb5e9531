"""One tensor of a checkpoint, in any file format: the place of its bytes and how to decode them. Read by `loader`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from kvasir_runtime.kernels.quantized import QuantFormat, QuantizedWeight


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointTensor:
    """name: as a Hugging Face checkpoint calls it. start, num_bytes: its place in the file at path, row after row.

    decoded: (bytes, count) -> that many rows (elements of a vector) in some floating type, where the bytes are, perhaps
    a view of them. unit: count and the first row must be multiples of it, where rows can only be decoded in groups.
    format: what the file holds, where that is a format of ours; kept then gives the rows in it, exactly.
    dtype: of its numbers, where they are of a plain type and in the order of the file. part: (first row, count) -> the
    same for some rows, where it hangs on which they are how they are decoded; then only what it gives is asked for
    decoded and kept.
    """

    name: str
    shape: tuple[int, ...]
    path: Path
    start: int
    num_bytes: int
    decoded: Callable[[Tensor, int], Tensor]
    unit: int = 1
    format: QuantFormat | None = None
    kept: Callable[[Tensor, int], QuantizedWeight] | None = None
    dtype: torch.dtype | None = None
    part: "Callable[[int, int], CheckpointTensor] | None" = None

    @property
    def row_bytes(self) -> int:
        """Of one row in the file; rows are whole blocks of bytes in every format."""
        return self.num_bytes // self.shape[0]

    def reordered(self, order: tuple[int, ...]) -> "CheckpointTensor":
        """The same with the rows of each group of len(order) in that order."""

        def turned(rows: Tensor) -> Tensor:
            index = torch.tensor(order, device=rows.device)
            plain = rows.view(torch.uint8) if rows.dtype == torch.float8_e4m3fn else rows  # torch cannot select e4m3
            chosen = plain.reshape(-1, len(order), *rows.shape[1:]).index_select(1, index)
            return chosen.reshape(rows.shape).view(rows.dtype)

        def kept(raw: Tensor, count: int) -> QuantizedWeight:
            assert self.kept is not None
            found = self.kept(raw, count)
            return QuantizedWeight(
                format=found.format,
                values=turned(found.values),
                scales=turned(found.scales),
                minima=None if found.minima is None else turned(found.minima),
            )

        part = self.part
        return replace(
            self,
            decoded=lambda raw, count: turned(self.decoded(raw, count)),
            unit=math.lcm(self.unit, len(order)),
            kept=None if self.kept is None else kept,
            dtype=None,
            part=None if part is None else lambda first, count: part(first, count).reordered(order),
        )
