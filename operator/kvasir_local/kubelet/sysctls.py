"""The sysctls of this machine that every kubelet changes: saved before the first one starts, restored after the last.

Called by `host` under its lock.
"""

import contextlib
from pathlib import Path
from typing import Final

import msgspec

from kvasir_local.credentials import write_private

CHANGED: Final = (
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
"""Of kubelet's container manager; the other choice is protectKernelDefaults, with which it ends unless they are set."""
_PROC: Final = Path("/proc/sys")


class SavedSysctls(msgspec.Struct, frozen=True, kw_only=True):
    """values: by path below /proc/sys. boot_id: the next start of the machine sets its own."""

    boot_id: str
    values: dict[str, str]


def save(file: Path, *, boot_id: str, proc: Path = _PROC) -> None:
    """Writes the present values, unless the file has those of this boot: kubelets have run since then."""
    if (known := _read(file)) is not None and known.boot_id == boot_id:
        return
    values = {name: (proc / name).read_text().strip() for name in CHANGED if (proc / name).exists()}
    write_private(file, msgspec.json.encode(SavedSysctls(boot_id=boot_id, values=values)))


def restore(file: Path, *, boot_id: str, proc: Path = _PROC) -> None:
    """Sets the saved values again and removes the file. What may not be written stays as it is."""
    known = _read(file)
    for name, value in known.values.items() if known is not None and known.boot_id == boot_id else ():
        with contextlib.suppress(OSError):
            if (proc / name).read_text().strip() != value:
                (proc / name).write_text(value)
    file.unlink(missing_ok=True)


def _read(file: Path) -> SavedSysctls | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=SavedSysctls)
    except (OSError, msgspec.DecodeError):
        return None
