"""Collectives of processes on one host, through memory that all of them map: collectives.cpp.

Reached through `kernels.backends`. The memory has no name: the process that starts the others gives them a descriptor.
"""

import ctypes
import mmap
import os
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from kvasir_runtime.errors import RankLostError
from kvasir_runtime.kernels.cpu.library import Function, Library

_TYPES = {torch.float32: 0, torch.bfloat16: 1}
_POINTER, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
LOST: Final = "another rank has ended"


class SharedMemoryCollectives:
    """One rank's part of a group; see `kernels.collectives`."""

    def __init__(self, found: Library, descriptor: int, rank: int, ranks: int, offset: int = 0) -> None:
        """descriptor: as `shared_memory` made it; this object needs it only until it is made. offset: of the group."""
        self.rank, self.ranks, self.failure = rank, ranks, ""
        self._memory = mmap.mmap(descriptor, offset + num_bytes(found, ranks))
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory, offset))
        self._all_reduce = _function(found, "group_all_reduce", _POINTER, _SIZE, _INT)
        self._gather = _function(found, "group_gather", _POINTER, _SIZE, _POINTER)
        self._broadcast = _function(found, "group_broadcast", _POINTER, _SIZE)
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

    def end_start(self) -> None:
        """Each waits for as long as the others take."""

    def abort(self, why: str) -> None:
        """The reason is this process's own; the others learn only that the group has ended."""
        self.failure = self.failure or why
        self._abort(self._address, self.ranks)

    def _check(self, code: int) -> None:
        if code:
            raise RankLostError(self.failure or LOST)


class SharedMemoryPipe:
    """One rank's end of a pipe, through which rank 0 of its members sends to all others and does not wait for them.

    The others take part in the same order, each when it is ready.
    """

    def __init__(self, found: Library, descriptor: int, rank: int, ranks: int, offset: int) -> None:
        """As of `SharedMemoryCollectives`."""
        self.failure = ""
        self._rank, self._ranks = rank, ranks
        self._memory = mmap.mmap(descriptor, offset + pipe_bytes(found, ranks))
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory, offset))
        self._pass = _function(found, "pipe_pass", _POINTER, _SIZE)
        self._slots, self._slot_bytes = _size_of(found, "pipe_slots"), _size_of(found, "pipe_slot_bytes")
        self._abort = found.handle.kvasir_group_abort
        self._abort.argtypes, self._abort.restype = (_POINTER, _INT), None

    def holds(self, sizes: Sequence[int]) -> bool:
        """Whether tensors of so many bytes may be sent before the first of them is received."""
        return sum([-(-size // self._slot_bytes) for size in sizes]) <= self._slots

    def pass_tensor(self, x: Tensor) -> Tensor:
        """Rank 0's x, in place of every other's, of the same shape and type."""
        x = x.contiguous()
        self._move(x.data_ptr(), x.nbytes)
        return x

    def pass_bytes(self, message: bytes) -> bytes:
        """What rank 0 gives; first its length, then its bytes."""
        length = _SIZE(len(message))
        self._move(ctypes.addressof(length), 8)
        room = bytearray(message) if self._rank == 0 else bytearray(length.value)
        if not room:
            return b""
        self._move(ctypes.addressof((ctypes.c_char * len(room)).from_buffer(room)), len(room))
        return bytes(room)

    def abort(self, why: str) -> None:
        """As of `SharedMemoryCollectives`."""
        self.failure = self.failure or why
        self._abort(self._address, self._ranks)

    def _move(self, address: int, size: int) -> None:
        if self._pass(self._address, self._rank, self._ranks, address, size):
            raise RankLostError(self.failure or LOST)


def num_bytes(found: Library, ranks: int) -> int:
    """Of the memory of a group. Raises ValueError for more ranks than it may have."""
    return _checked(_size_of(found, "group_bytes", ranks), ranks)


def pipe_bytes(found: Library, ranks: int) -> int:
    """Of the memory of a pipe. Raises ValueError as for a group."""
    return _checked(_size_of(found, "pipe_bytes", ranks), ranks)


def shared_memory(size: int) -> int:
    """A descriptor of new memory for groups, zeroed, which goes with the last process that has it. Raises OSError."""
    descriptor = os.memfd_create("kvasir-ranks")
    os.truncate(descriptor, size)
    return descriptor


def _function(found: Library, name: str, *types: type) -> Function:
    function = getattr(found.handle, f"kvasir_{name}")
    function.argtypes, function.restype = (_POINTER, _INT, _INT, *types), _INT
    typed: Function = function
    return typed


def _size_of(found: Library, name: str, *arguments: int) -> int:
    function = getattr(found.handle, f"kvasir_{name}")
    function.argtypes, function.restype = (_INT,) * len(arguments), _SIZE
    return int(function(*arguments))


def _checked(size: int, ranks: int) -> int:
    if not size:
        raise ValueError(f"{ranks} ranks are more than one group may have")
    return size
