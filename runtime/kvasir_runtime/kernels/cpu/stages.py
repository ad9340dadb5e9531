"""Collectives of stages of processes on one host: a group in shared memory for each set that exchanges something.

All ranks have one for what rank 0 sends; those of a stage one for sums; and the first of each stage has one with all of
the next, or with rank 0 behind the last, through which hidden states go. They lie one behind the other in one memory.
"""

from itertools import accumulate
from typing import Final

from torch import Tensor

from kvasir_runtime.kernels.cpu import collectives
from kvasir_runtime.kernels.cpu.collectives import SharedMemoryCollectives
from kvasir_runtime.kernels.cpu.library import Library

Members = tuple[int, ...]
"""Ranks of a group, in the order of their numbers within it."""
ALL: Final = "all"


class SharedMemoryStages:
    """One rank's part; see `kernels.collectives.StageCollectives`."""

    def __init__(self, found: Library, descriptor: int, rank: int, ranks: int, stages: int) -> None:
        """descriptor: of memory of `num_bytes`; this object needs it only until it is made."""
        self.rank, self.ranks, self.stages = rank, ranks, stages
        groups, stage = _groups(ranks, stages), rank * stages // ranks
        ends = accumulate(collectives.num_bytes(found, len(members)) for members in groups.values())
        offsets = dict(zip(groups, (0, *ends), strict=False))

        def part(name: str) -> SharedMemoryCollectives:
            """At a rank that is no member, for `abort` alone."""
            number = groups[name].index(rank) if rank in groups[name] else 0
            return SharedMemoryCollectives(found, descriptor, number, len(groups[name]), offsets[name])

        self._parts = {name: part(name) for name in groups if rank == 0 or rank in groups[name]}
        self._all = self._parts[ALL]
        self._stage = self._parts.get(_sums_of(stage))
        inlet, outlet = _pipe_from((stage - 1) % stages), _pipe_from(stage)
        self._inlet = self._parts[inlet] if rank in groups[inlet] else None
        self._outlet = self._parts[outlet] if groups[outlet][0] == rank else None

    @property
    def failure(self) -> str:
        """Of the group of all."""
        return self._all.failure

    def all_reduce(self, x: Tensor) -> Tensor:
        """Of the ranks of this stage."""
        return x if self._stage is None else self._stage.all_reduce(x)

    def gather(self, x: Tensor) -> Tensor:
        """Of the ranks of this stage, at its first."""
        return x.unsqueeze(0) if self._stage is None else self._stage.gather(x)

    def broadcast(self, message: bytes) -> bytes:
        """To all."""
        return self._all.broadcast(message)

    def send(self, x: Tensor) -> None:
        """Waits until all of the next stage receive."""
        if self._outlet is not None:
            self._outlet.share(x)

    def receive(self, x: Tensor) -> Tensor:
        """In x, where that is contiguous."""
        return x if self._inlet is None else self._inlet.share(x)

    def end_start(self) -> None:
        """Each waits for as long as the others take."""

    def abort(self, why: str) -> None:
        """Of all groups at rank 0, else of those that this rank is a member of."""
        for part in self._parts.values():
            part.abort(why)


def num_bytes(found: Library, ranks: int, stages: int) -> int:
    """Of the memory of all groups. Raises ValueError for more ranks than one may have."""
    return sum(collectives.num_bytes(found, len(members)) for members in _groups(ranks, stages).values())


def _groups(ranks: int, stages: int) -> dict[str, Members]:
    """The members of each group, by its name."""
    each = ranks // stages
    of_stage = [tuple(range(stage * each, (stage + 1) * each)) for stage in range(stages)]
    groups: dict[str, Members] = {ALL: tuple(range(ranks))}
    if each > 1:
        groups |= {_sums_of(stage): members for stage, members in enumerate(of_stage)}
    groups |= {_pipe_from(stage): (of_stage[stage][0], *of_stage[stage + 1]) for stage in range(stages - 1)}
    return groups | {_pipe_from(stages - 1): (of_stage[-1][0], 0)}


def _sums_of(stage: int) -> str:
    return f"sums of stage {stage}"


def _pipe_from(stage: int) -> str:
    return f"pipe from stage {stage}"
