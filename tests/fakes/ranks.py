"""Groups of ranks within one process, for tests: the memory and the code of real ones, without processes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from kvasir_runtime.kernels import backends
from kvasir_runtime.kernels.collectives import Collectives


@contextmanager
def group_of(ranks: int) -> Iterator[tuple[Collectives, ...]]:
    """So many ranks, whose operations end with the block."""
    descriptor = backends.rank_memory(ranks)
    group = tuple(backends.collectives_of(descriptor, rank, ranks) for rank in range(ranks))
    os.close(descriptor)
    try:
        yield group
    finally:
        group[0].abort("the test has ended")


class WithoutMemory:
    """A rank that fails before it takes part in an operation, while `fails` names that."""

    def __init__(self, member: Collectives) -> None:
        self.rank, self.ranks, self.fails = member.rank, member.ranks, ""
        self._member = member

    @property
    def failure(self) -> str:
        """The member's."""
        return self._member.failure

    def all_reduce(self, x: Tensor) -> Tensor:
        """The member's."""
        return self._able("all_reduce").all_reduce(x)

    def gather(self, x: Tensor) -> Tensor:
        """The member's."""
        return self._able("gather").gather(x)

    def broadcast(self, message: bytes) -> bytes:
        """The member's."""
        return self._able("broadcast").broadcast(message)

    def abort(self, why: str) -> None:
        """The member's."""
        self._member.abort(why)

    def _able(self, operation: str) -> Collectives:
        if operation == self.fails:
            raise RuntimeError("can't allocate memory:\n1 byte")
        return self._member
