"""Rows to 4 bits in C++: the search of `kernels.quantize`, a vector of groups at a time. Used by the table of CPUs."""

import ctypes
from typing import Final

from torch import Tensor

from kvasir_runtime.kernels import quantize, quantized
from kvasir_runtime.kernels.cpu.library import Library
from kvasir_runtime.kernels.cpu.structs import TYPES
from kvasir_runtime.kernels.quantized import GROUP, QuantFormat, QuantizedWeight

MAX_SHARES: Final = 8
_POINTER, _COUNT = ctypes.c_void_p, ctypes.c_int64


class QuantizeArgs(ctypes.Structure):
    """kvasir::QuantizeArgs."""

    _fields_ = (
        ("x", _POINTER),
        ("values", _POINTER),
        ("scales", _POINTER),
        ("minima", _POINTER),
        ("groups", _COUNT),
        ("least_scale", ctypes.c_float),
        ("num_shares", _COUNT),
        ("refinements", _COUNT),
        ("shares", ctypes.c_float * MAX_SHARES),
        ("type", ctypes.c_int32),
    )


def in_cpp(library: Library) -> quantize.Quantize:
    """The operation, in C++ for what it takes."""

    def quantized_rows(rows: Tensor, format: QuantFormat) -> QuantizedWeight:  # noqa: A002 -- its name
        if not takes(library, rows, format):
            return quantize.reference(rows, format)
        weight = quantized.empty(format, rows.shape[0], rows.shape[1], rows.device)
        ranged(library, rows, weight)
        return weight

    return quantized_rows


def takes(library: Library, rows: Tensor, format: QuantFormat) -> bool:  # noqa: A002 -- its name
    """Whether `ranged` can do it: groups of 32 with scales of 16 bits, dense, on this processor."""
    known = rows.device.type == "cpu" and rows.dtype in TYPES and rows.dtype.is_floating_point
    fits = format.ranged and format.group == GROUP and not format.wide
    return library.has("quantize4") and known and fits and rows.is_contiguous()


def ranged(library: Library, rows: Tensor, into: QuantizedWeight) -> None:
    """(rows, columns) into the numbers, scales and minima of a dense QuantizedWeight."""
    assert into.minima is not None
    args = QuantizeArgs(
        x=rows.data_ptr(),
        values=into.values.data_ptr(),
        scales=into.scales.data_ptr(),
        minima=into.minima.data_ptr(),
        groups=into.scales.numel(),
        least_scale=quantize.LEAST_SCALE,
        num_shares=len(quantize.RANGES),
        refinements=quantize.REFINEMENTS,
        shares=(ctypes.c_float * MAX_SHARES)(*quantize.RANGES),
        type=TYPES[rows.dtype],
    )
    library.function("quantize4", ctypes.POINTER(QuantizeArgs))(ctypes.byref(args))
