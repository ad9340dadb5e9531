"""One tensor of a checkpoint as `load` wants it, whatever the file format: its header now, its rows when asked for."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from kvasir_runtime.kernels.quantized import Format, Quantized


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """name: as a Hugging Face checkpoint calls it. num_bytes: in the file.

    rows: (first, count) -> those rows (elements of a vector) in some floating type, valid while the file is open.
    unit: count and first must be multiples of it, where rows can only be read in groups.
    format: what the file holds, where that is a format of ours; kept then gives the rows in it, exactly.
    """

    name: str
    shape: tuple[int, ...]
    num_bytes: int
    rows: Callable[[int, int], Tensor]
    unit: int = 1
    format: Format | None = None
    kept: Callable[[int, int], Quantized] | None = None
