"""Holds a lock file that one process has at a time; the kernel frees it when its holder ends, however that happens.

For what two processes must not do at once: build the binaries, start or stop a cluster, choose its addresses.
"""

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvasir_local.progress import Progress

_POLL_S: Final = 0.05


@contextlib.contextmanager
def held(path: Path, *, progress: Progress, waiting: str, timeout_s: float | None = None) -> Iterator[None]:
    """Holds the lock while the context is open; the file is made if need be and stays.

    waiting: shown meanwhile. TimeoutError when another process has it for longer than timeout_s; None waits for ever.
    """
    started = time.monotonic()
    with path.open("a") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                waited_s = time.monotonic() - started
                if timeout_s is not None and waited_s > timeout_s:
                    raise TimeoutError(f"{path} is held by another process for {waited_s:.0f} s") from None
                progress.waiting(f"{waiting}… {waited_s:.0f} s")
                time.sleep(_POLL_S)
        yield
