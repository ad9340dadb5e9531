"""Collectives of stages of processes on one host: shared memory for each set of ranks that exchanges something.

All ranks have a pipe for what rank 0 sends; those of a stage a group for sums; and the first of each stage has a pipe
to all of the next, or to rank 0 behind the last, through which hidden states go. They lie one behind the other in one
memory.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from torch import Tensor

from kvasir_runtime.kernels.cpu import collectives
from kvasir_runtime.kernels.cpu.collectives import SharedMemoryCollectives, SharedMemoryPipe
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
        offsets = dict(zip(groups, (0, *accumulate(_sizes(found, groups))), strict=False))
        own = {name: (members.index(rank), len(members)) for name, members in groups.items() if rank in members}
        others = {name: (0, len(members)) for name, members in groups.items() if rank == 0 and name not in own}
        pipes = {
            name: SharedMemoryPipe(found, descriptor, *place, offsets[name])
            for name, place in (own | others).items()
            if not _is_sums(name)
        }
        sums = {
            name: SharedMemoryCollectives(found, descriptor, *place, offsets[name])
            for name, place in (own | others).items()
            if _is_sums(name)
        }
        self._parts: tuple[SharedMemoryPipe | SharedMemoryCollectives, ...] = (*pipes.values(), *sums.values())
        """At rank 0 those that it is no member of too, for `abort` alone."""
        self._all = pipes[ALL]
        self._stage = sums.get(_sums_of(stage))
        inlet, outlet = _pipe_from((stage - 1) % stages), _pipe_from(stage)
        self._inlet = pipes[inlet] if inlet in own else None
        self._outlet = pipes[outlet] if groups[outlet][0] == rank else None

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
        return self._all.pass_bytes(message)

    def send(self, x: Tensor) -> None:
        """Waits while there is no room for what the next stage has not received."""
        if self._outlet is not None:
            self._outlet.pass_tensor(x)

    def receive(self, x: Tensor) -> Tensor:
        """In x, where that is contiguous."""
        return x if self._inlet is None else self._inlet.pass_tensor(x)

    def holds(self, sizes: Sequence[int]) -> bool:
        """By the room of the pipe behind the last stage."""
        return self._inlet is None or self._inlet.holds(sizes)

    def end_start(self) -> None:
        """Each waits for as long as the others take."""

    def abort(self, why: str) -> None:
        """Of all groups at rank 0, else of those that this rank is a member of."""
        for part in self._parts:
            part.abort(why)


def num_bytes(found: Library, ranks: int, stages: int) -> int:
    """Of the memory of all groups. Raises ValueError for more ranks than one may have."""
    return sum(_sizes(found, _groups(ranks, stages)))


def _sizes(found: Library, groups: dict[str, Members]) -> list[int]:
    """Bytes of each."""
    return [
        (collectives.num_bytes if _is_sums(name) else collectives.pipe_bytes)(found, len(members))
        for name, members in groups.items()
    ]


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


def _is_sums(name: str) -> bool:
    return name.startswith("sums")


def _pipe_from(stage: int) -> str:
    return f"pipe from stage {stage}"
