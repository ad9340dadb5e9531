"""Weights of linear layers in the layout of linear.h, and the products with them.

Called by `kernels.linear`, which decides what is packed, and by whoever computes a whole step: `Packed.struct` is what
the C++ takes. Each builder reads its weight and leaves it alone: the caller drops it, so that it exists twice only for
a moment.
"""

import ctypes
import mmap
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.kernels.native import structs
from kvasir_runtime.kernels.native.library import Function, Library

TILE: Final = 16
BFLOAT16_WEIGHTS: Final = 0
_HUGE: Final = 2 << 20
_POINTER, _COUNT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


class LinearStruct(ctypes.Structure):
    """kvasir::Linear."""

    _fields_ = (
        ("weight", _POINTER),
        ("scales", _POINTER),
        ("minima", _POINTER),
        ("units", _POINTER),
        ("bias", _POINTER),
        ("k", _COUNT),
        ("outputs", _COUNT),
        ("tiles", _COUNT),
        ("group", _COUNT),
        ("kind", _INT),
        ("gated", _INT),
    )


class ProductStruct(ctypes.Structure):
    """kvasir::Product."""

    _fields_ = (("x", _POINTER), ("out", _POINTER), ("residual", _POINTER), ("rows", _COUNT), ("type", _INT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A packed weight: call it with x. struct points into the tensors of `kept`."""

    struct: LinearStruct
    kept: tuple[Tensor, ...]
    _product: Function
    _rows: Function

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, outputs) from contiguous (tokens, k)."""
        out = x.new_empty((x.shape[0], self.struct.outputs))
        args = ProductStruct(x=x.data_ptr(), out=out.data_ptr(), rows=x.shape[0], type=structs.TYPES[x.dtype])
        self._product(ctypes.byref(self.struct), ctypes.byref(args))
        return out

    def rows(self, ids: Tensor) -> Tensor:
        """Rows of a bfloat16 weight that is not gated, exactly: (count, k) of ids (count,) int64, contiguous."""
        out = torch.empty((ids.shape[0], self.struct.k), dtype=torch.bfloat16)
        self._rows(ctypes.byref(self.struct), ids.data_ptr(), ids.shape[0], out.data_ptr())
        return out


def takes(library: Library, weight: Tensor) -> bool:
    """Whether this processor's variant computes with a weight of this type."""
    return weight.dtype == torch.bfloat16 and library.has("pack_bf16")


def packed(library: Library, weight: Tensor, bias: Tensor | None, *, gated: bool = False) -> Packed:
    """The product with a bfloat16 weight: (rows, k), contiguous; bias: (rows,) or None.

    gated: the first half of the rows is a gate, the second what it lets through, and calls return silu(gate) * up.
    """
    rows, k = weight.shape
    tiles = num_tiles(rows, gated=gated)
    target = storage(tiles * TILE * -(-k // 2) * 4)
    types = (_POINTER, _COUNT, _COUNT, _COUNT, _INT, _POINTER)
    library.function("pack_bf16", *types)(weight.data_ptr(), rows, k, tiles, gated, target.data_ptr())
    biases = None if bias is None else tiled(bias.float(), tiles, gated=gated)
    struct = LinearStruct(
        weight=target.data_ptr(),
        bias=None if biases is None else biases.data_ptr(),
        k=k,
        outputs=rows // 2 if gated else rows,
        tiles=tiles,
        kind=BFLOAT16_WEIGHTS,
        gated=gated,
    )
    return made(library, struct, (target,) if biases is None else (target, biases))


def made(library: Library, struct: LinearStruct, kept: tuple[Tensor, ...]) -> Packed:
    """A Packed of a filled struct."""
    return Packed(
        struct=struct,
        kept=kept,
        _product=library.function("linear", _POINTER, _POINTER),
        _rows=library.function("linear_rows", _POINTER, _POINTER, _COUNT, _POINTER),
    )


def num_tiles(rows: int, *, gated: bool) -> int:
    """Tiles of a weight, those that padding fills included."""
    return 2 * -(-rows // (2 * TILE)) if gated else -(-rows // TILE)


def tiled(values: Tensor, tiles: int, *, gated: bool) -> Tensor:
    """A value per row in the order of the tiles, zero where there is padding: (rows,) -> (tiles * 16,)."""
    if not gated:
        out = values.new_zeros(tiles * TILE)
        out[: values.shape[0]] = values
        return out
    half = values.shape[0] // 2
    halves = values.new_zeros(2, tiles // 2 * TILE)
    halves[:, :half] = values.view(2, half)
    return halves.view(2, tiles // 2, TILE).transpose(0, 1).reshape(-1)


def storage(num_bytes: int) -> Tensor:
    """Room for a packed weight, aligned to a cache line; large ones are offered to the kernel for huge pages.

    A stream over 4 KiB pages misses the translation cache once a page, and prefetchers stop at each border.
    """
    align = _HUGE if num_bytes >= _HUGE else 64
    room = torch.empty(num_bytes + align, dtype=torch.uint8)
    start = -room.data_ptr() % align
    if align == _HUGE:
        libc = ctypes.CDLL(None)
        whole = num_bytes // _HUGE * _HUGE
        libc.madvise(_POINTER(room.data_ptr() + start), ctypes.c_size_t(whole), mmap.MADV_HUGEPAGE)
    return room[start : start + num_bytes]
