"""Token masks, computed in threads beside the forward pass, so that a slow grammar does not delay the masks of others.

Used by `grammar_masks`. The masks of a step are one task, computed one after another. A task in which one mask takes
too long is stopped behind it, and another thread computes those that were not begun. A matcher that was slow once has
tasks and a thread of its own from then on.
"""

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from kvasir_runtime.guide.matcher import GrammarMatcher

PATIENCE_S: Final = 0.005
"""How long a step waits for a mask without another one becoming ready. Most take less than a tenth of a millisecond."""
ALONE_S: Final = 0.05
"""The same where no other sequence waits: the engine must still answer messages meanwhile."""
THREADS: Final = 4
"""So many tasks may be held up at a time by matchers that are slow for the first time."""


@dataclass(slots=True, eq=False)
class MaskTask:
    """masks: (matchers, ids / 32) int32, of which the first num_done are computed."""

    matchers: "Sequence[GrammarMatcher]"
    masks: NDArray[np.int32]
    num_done: int = 0
    ended: "Future[None]" = field(default_factory=Future)
    _num_begun: int = 0
    _is_stopped: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self) -> None:
        """In a thread; llguidance releases the interpreter's lock."""
        for number, matcher in enumerate(self.matchers):
            with self._lock:
                if self._is_stopped:
                    return
                self._num_begun = number + 1
            matcher.fill(self.masks[number : number + 1])
            self.num_done = number + 1

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


class MaskFiller:
    """The threads, which begin with the first mask."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._slow_thread: ThreadPoolExecutor | None = None

    def begin(self, matchers: "Sequence[GrammarMatcher]", width: int, *, slow: bool = False) -> list[MaskRow]:
        """Begin the masks of matchers, each (width,) int32; all earlier tokens were accepted. slow: they were late."""
        task = MaskTask(matchers, np.full((len(matchers), width), -1, dtype=np.int32))
        if slow:
            if self._slow_thread is None:
                self._slow_thread = ThreadPoolExecutor(1, thread_name_prefix="slow-masks")
            task.ended = self._slow_thread.submit(task.run)
        else:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="masks")
            task.ended = self._threads.submit(task.run)
        return [MaskRow(task, number) for number in range(len(matchers))]


def wait_for(rows: Iterable[MaskRow], patience_s: float) -> None:
    """Wait until all are ready, or until none became ready for so long. Raises what a task raised."""
    tasks = {row.task for row in rows if not row.is_ready}
    while running := [task for task in tasks if not task.ended.done()]:
        before = sum(task.num_done for task in running)
        wait([task.ended for task in running], timeout=patience_s)
        if sum(task.num_done for task in running) == before:
            break
    for task in tasks:
        if task.ended.done():
            task.ended.result()
