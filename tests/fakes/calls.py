"""Counts calls of Python functions, so that a test can bound a cost by counting instead of timing."""

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def calls() -> Iterator[Counter[str]]:
    """How often each function of ours is called meanwhile in this thread, as module.function."""
    found: Counter[str] = Counter()

    def note(frame: FrameType, event: str, _: object) -> None:
        module = str(frame.f_globals.get("__name__", ""))
        if event == "call" and module.startswith("kvasir_"):
            found[f"{module}.{frame.f_code.co_name}"] += 1

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield found
    finally:
        sys.setprofile(before)
