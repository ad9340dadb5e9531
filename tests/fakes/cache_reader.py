"""What tests of a cache that one process fills and others only read have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

NAME: Final = "s3://bucket/tiny@sha256:" + "a" * 64


class Naps:
    """Runs the next step of what happens meanwhile in place of each pause."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self.steps = list(steps)

    def __call__(self, _: float) -> None:
        assert self.steps, "it waits although the model is there"
        self.steps.pop(0)()


def folder(root: Path, name: str = "bucket-tiny-1") -> Path:
    """A checkpoint without weights."""
    made = root / name
    made.mkdir(exist_ok=True)
    (made / "config.json").write_text("{}")
    return made
