"""Finds and removes mounts of this machine, by /proc/self/mountinfo. Called by `host` and `images`."""

import re
import subprocess
from pathlib import Path
from typing import Final

_INFO: Final = Path("/proc/self/mountinfo")


def points(text: str) -> list[str]:
    """Mount points in the text of a mountinfo file. `Path.is_mount` sees no bind mount within one disk."""
    paths = [line.split()[4] for line in text.splitlines()]
    return [re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), path) for path in paths]


def is_mount(path: Path) -> bool:
    return str(path) in points(_INFO.read_text())


def below(directory: Path) -> list[str]:
    """Mount points below a directory, the deepest first."""
    found = points(_INFO.read_text())
    return sorted((path for path in found if path.startswith(f"{directory}/")), key=len, reverse=True)


def unmount(path: str | Path) -> None:
    """At once, or when its last user leaves. What cannot be unmounted stays, and is_mount shows it."""
    subprocess.run(["umount", "--lazy", path], capture_output=True, check=False)
