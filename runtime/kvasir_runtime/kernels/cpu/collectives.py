"""Collectives of processes on one host, through memory that all of them map: collectives.cpp.

Reached through `kernels.backends`. The memory has no name: the process that starts the others gives them a descriptor.
"""

import ctypes
import mmap
import os

import torch
from torch import Tensor

from kvasir_runtime.errors import RankLostError
from kvasir_runtime.kernels.cpu.library import Function, Library

_TYPES = {torch.float32: 0, torch.bfloat16: 1}
_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64


class SharedMemoryCollectives:
    """One rank's part of a group; see `kernels.collectives`."""

    def __init__(self, found: Library, descriptor: int, rank: int, ranks: int, offset: int = 0) -> None:
        """descriptor: as `shared_memory` made it; this object needs it only until it is made. offset: of the group."""
        self.rank, self.ranks, self.failure = rank, ranks, ""
        self._memory = mmap.mmap(descriptor, offset + num_bytes(found, ranks))
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory, offset))
        self._all_reduce = _function(found, "all_reduce", _POINTER, _SIZE, _INT)
        self._gather = _function(found, "gather", _POINTER, _SIZE, _POINTER)
        self._broadcast = _function(found, "broadcast", _POINTER, _SIZE)
        self._abort = found.handle.kvasir_group_abort
        self._abort.argtypes, self._abort.restype = (_POINTER, _INT), None

    def all_reduce(self, x: Tensor) -> Tensor:
        """In place for the types that C++ adds, which are those that processors compute in."""
        if x.dtype not in _TYPES:
            return self.all_reduce(x.float()).to(x.dtype)
        x = x.contiguous()
        self._check(self._all_reduce(self._address, self.rank, self.ranks, x.data_ptr(), x.numel(), _TYPES[x.dtype]))
        return x

    def gather(self, x: Tensor) -> Tensor:
        """Only rank 0 reads what the others wrote."""
        x = x.contiguous()
        out = x.new_empty((self.ranks, *x.shape)) if self.rank == 0 else None
        target = 0 if out is None else out.data_ptr()
        self._check(self._gather(self._address, self.rank, self.ranks, x.data_ptr(), x.nbytes, target))
        return x.unsqueeze(0) if out is None else out

    def broadcast(self, message: bytes) -> bytes:
        """First its length, then its bytes."""
        length = _SIZE(len(message))
        self._check(self._broadcast(self._address, self.rank, self.ranks, ctypes.addressof(length), 8))
        room = bytearray(message) if self.rank == 0 else bytearray(length.value)
        if not room:
            return b""
        held = (ctypes.c_char * len(room)).from_buffer(room)
        self._check(self._broadcast(self._address, self.rank, self.ranks, ctypes.addressof(held), len(room)))
        return bytes(room)

    def share(self, x: Tensor) -> Tensor:
        """Rank 0's x, in place of every rank's, of the same shape and type."""
        x = x.contiguous()
        self._check(self._broadcast(self._address, self.rank, self.ranks, x.data_ptr(), x.nbytes))
        return x

    def end_start(self) -> None:
        """Each waits for as long as the others take."""

    def abort(self, why: str) -> None:
        """The reason is this process's own; the others learn only that the group has ended."""
        self.failure = self.failure or why
        self._abort(self._address, self.ranks)

    def _check(self, code: int) -> None:
        if code:
            raise RankLostError(self.failure or "another rank has ended")


def num_bytes(found: Library, ranks: int) -> int:
    """Of the memory of a group. Raises ValueError for more ranks than it may have."""
    found.handle.kvasir_group_bytes.restype = _SIZE
    size = int(found.handle.kvasir_group_bytes(ranks))
    if not size:
        raise ValueError(f"{ranks} ranks are more than one group may have")
    return size


def shared_memory(size: int) -> int:
    """A descriptor of new memory for groups, zeroed, which goes with the last process that has it. Raises OSError."""
    descriptor = os.memfd_create("kvasir-ranks")
    os.truncate(descriptor, size)
    return descriptor


def _function(found: Library, name: str, *types: type) -> Function:
    function = getattr(found.handle, f"kvasir_group_{name}")
    function.argtypes, function.restype = (_POINTER, _INT, _INT, *types), _INT
    typed: Function = function
    return typed
