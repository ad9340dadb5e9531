"""Token masks, computed in threads beside the forward pass, so that a slow grammar does not delay the masks of others.

Used by `grammar_masks`. The masks of a step are one task, computed one after another. A task in which one mask takes
too long is stopped behind it, and another thread computes those that were not begun. A matcher that was slow once has
tasks and a thread of its own from then on, and masks behind drafts have threads of theirs: nothing depends on them.
"""

import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kvasir_runtime.kernels.row_sampler import LateMask

PATIENCE_S: Final = 0.005
"""How long a step waits for a mask without another one becoming ready. Most take less than a tenth of a millisecond."""
ALONE_S: Final = 0.05
"""The same where no other sequence waits: the engine must still answer messages meanwhile."""
THREADS: Final = 4
"""So many tasks may be held up at a time by matchers that are slow for the first time."""
DRAFT_THREADS: Final = 2
SLOW_S: Final = PATIENCE_S / 2
"""How long one mask behind a draft may take; many that follow each other may take longer together."""


class FillsMask(Protocol):
    """A matcher, or what stands for one behind a draft."""

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Set the bits of the tokens that may follow, (1, ids / 32) int32."""
        ...


@dataclass(slots=True, eq=False)
class MaskTask:
    """masks: (matchers, ids / 32) int32, of which the first done[0] are computed: C++ reads that while others run."""

    matchers: Sequence[FillsMask]
    masks: NDArray[np.int32]
    done: NDArray[np.int64] = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    ended: "Future[None]" = field(default_factory=Future)
    _num_begun: int = 0
    _begun_s: float = 0.0
    _is_stopped: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """In a thread; llguidance releases the interpreter's lock."""
        for number, matcher in enumerate(self.matchers):
            with self._lock:
                if self._is_stopped:
                    return
                self._num_begun, self._begun_s = number + 1, time.monotonic()
            matcher.fill(self.masks[number : number + 1])
            self.done[0] = number + 1

    @property
    def num_done(self) -> int:
        """How many are computed."""
        return int(self.done[0])

    def is_held_up_by(self, number: int) -> bool:
        """Whether this mask is being computed, and takes too long."""
        with self._lock:
            begun, since = self._num_begun, self._begun_s
        return begun == number + 1 > self.num_done and time.monotonic() - since > SLOW_S

    def stop(self) -> int:
        """Begin no other mask; the number of those that were begun."""
        with self._lock:
            self._is_stopped = True
            return self._num_begun


class MaskRow(NamedTuple):
    """One mask of a task."""

    task: MaskTask
    number: int

    @property
    def is_ready(self) -> bool:
        """Whether it is computed."""
        return self.task.num_done > self.number

    @property
    def mask(self) -> NDArray[np.int32]:
        """(ids / 32,) int32, once it is ready."""
        row: NDArray[np.int32] = self.task.masks[self.number]
        return row

    @property
    def late(self) -> LateMask:
        """The same for a step that reads it when it samples."""
        return LateMask(self.task.masks[self.number], self.task.done, self.number)


class MaskFiller:
    """The threads, which begin with the first mask."""

    def __init__(self) -> None:
        self._executors: dict[str, ThreadPoolExecutor] = {}

    def begin(
        self, matchers: Sequence[FillsMask], width: int, *, slow: bool = False, drafts: bool = False
    ) -> list[MaskRow]:
        """Begin the masks of matchers, each (width,) int32; all earlier tokens were accepted. slow: they were late.
        drafts: they are behind drafts.
        """
        task = MaskTask(matchers, np.full((len(matchers), width), -1, dtype=np.int32))
        if slow:
            executor = self._executor("slow-masks", 1)
        elif drafts:
            executor = self._executor("draft-masks", DRAFT_THREADS)
        else:
            executor = self._executor("masks", THREADS)
        task.ended = executor.submit(task.run)
        return [MaskRow(task, number) for number in range(len(matchers))]

    def _executor(self, name: str, threads: int) -> ThreadPoolExecutor:
        """Of this name, which begins with its first task."""
        if name not in self._executors:
            self._executors[name] = ThreadPoolExecutor(threads, thread_name_prefix=name)
        return self._executors[name]


def wait_for(rows: Iterable[MaskRow], patience_s: float) -> None:
    """Wait until all are ready, or until none became ready for so long. Raises what a task raised."""
    tasks = {row.task for row in rows if not row.is_ready}
    while running := [task for task in tasks if not task.ended.done()]:
        before = sum(task.num_done for task in running)
        wait([task.ended for task in running], timeout=patience_s)
        if sum(task.num_done for task in running) == before:
            break
    _raise_of(tasks)


def wait_at_most(rows: Iterable[MaskRow], limit_s: float) -> None:
    """Wait until all are ready, no longer than so long. Raises what a task raised."""
    tasks = {row.task for row in rows if not row.is_ready}
    wait([task.ended for task in tasks], timeout=limit_s)
    _raise_of(tasks)


def _raise_of(tasks: Iterable[MaskTask]) -> None:
    for task in tasks:
        if task.ended.done():
            task.ended.result()
