"""Writes a volume's files so that a reader sees the old set or the new one, never a mixture: the ..data link.

Each file is a link through `..data`, which points to a dated directory; an update makes a new directory and renames the
link.
"""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from kvasir_local.node.rules.volume_files import VolumeFile

DATA = "..data"


def write(directory: Path, files: Mapping[str, VolumeFile]) -> bool:
    """Bring the volume directory to these files. Returns whether anything changed."""
    directory.mkdir(parents=True, exist_ok=True)
    current = directory / DATA
    if current.is_symlink() and _same(current, files):
        return False
    fresh = Path(tempfile.mkdtemp(prefix="..", dir=directory))
    fresh.chmod(0o755)
    for name, file in files.items():
        path = fresh / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.content)
        path.chmod(file.mode)
    old = os.readlink(current) if current.is_symlink() else None
    link = directory / f"{DATA}_next"
    link.unlink(missing_ok=True)
    link.symlink_to(fresh.name)
    link.replace(current)
    tops = {name.partition("/")[0] for name in files}
    for top in tops:
        if not (directory / top).is_symlink():
            (directory / top).symlink_to(f"{DATA}/{top}")
    for entry in directory.iterdir():
        if not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    if old is not None:
        shutil.rmtree(directory / old, ignore_errors=True)
    return True


def _same(current: Path, files: Mapping[str, VolumeFile]) -> bool:
    present = {str(path.relative_to(current)): path for path in current.rglob("*") if path.is_file()}
    return present.keys() == files.keys() and all(
        path.read_bytes() == files[name].content and path.stat().st_mode & 0o777 == files[name].mode
        for name, path in present.items()
    )
