"""Memory of the host: for what steps stream over, packed weights and the KV cache, and for tables that stay empty."""

import contextlib
import ctypes
import math
import mmap
import weakref
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_HUGE: Final = 2 << 20


def allocate(num_bytes: int) -> Tensor:
    """Undefined bytes, aligned to a cache line; of 2 MiB and more the kernel is advised to use huge pages.

    A stream over 4 KiB pages misses the translation cache once a page, and prefetchers stop at each border. The C
    library keeps what lies before an aligned piece for others: a tensor that begins somewhere would waste 2 MiB each.
    Pages are taken when they are first written. Raises MemoryError.
    """
    if num_bytes < _HUGE:
        room = torch.empty(num_bytes + 64, dtype=torch.uint8)
        start = -room.data_ptr() % 64
        return room[start : start + num_bytes]
    libc = ctypes.CDLL(None)
    libc.posix_memalign.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)
    libc.free.argtypes = (ctypes.c_void_p,)
    address = ctypes.c_void_p()
    if libc.posix_memalign(ctypes.byref(address), _HUGE, num_bytes) or address.value is None:
        raise MemoryError(f"no room for {num_bytes:,} bytes of host memory")
    held = (ctypes.c_uint8 * num_bytes).from_address(address.value)
    weakref.finalize(held, libc.free, address.value).atexit = False
    libc.madvise(address, ctypes.c_size_t(num_bytes // _HUGE * _HUGE), mmap.MADV_HUGEPAGE)
    return torch.frombuffer(held, dtype=torch.uint8)


def zeros(shape: tuple[int, ...], dtype: type[np.generic]) -> NDArray[Any]:
    """Zeros of which each 4 KiB take memory once they are written, for tables of which most stays empty.

    numpy advises the kernel to use huge pages for large arrays, and each first write takes 2 MiB of them: the rows of
    1,024 sequences of at most 131,072 tokens took 600 MB once every row had a token, and take 8. Raises OSError where
    there is no room.
    """
    num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    pages = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without huge pages
        pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, dtype=dtype, count=math.prod(shape)).reshape(shape)
