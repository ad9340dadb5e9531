"""Reports the bytes of a download while it runs, from what is on the disk: other processes may write it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_LOOK_S: Final = 0.5

OnBytes = Callable[[int, int], None]
"""Takes the bytes that are there and those that there will be."""


@contextmanager
def watched(held: Callable[[], int], size: int, on_bytes: OnBytes | None) -> Iterator[None]:
    """Call on_bytes about twice a second. held: bytes that are there; size: those that there will be."""
    if on_bytes is None:
        yield
        return
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            on_bytes(held(), size)

    on_bytes(held(), size)
    thread = threading.Thread(target=look, name="download-progress", daemon=True)
    thread.start()
    try:
        yield
        on_bytes(size, size)
    finally:
        ended.set()
        thread.join()
