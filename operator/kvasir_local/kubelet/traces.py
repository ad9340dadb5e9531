"""Removes what a node's pods leave in directories that no setting of containerd or kubelet names. Called by `host`."""

import contextlib
from pathlib import Path
from typing import Final

_RESULTS: Final = Path("/var/lib/cni/results")
"""libcni's cache: a file for each interface of a pod, which names the pod's network namespace."""
_LINKS: Final = Path("/var/log/containers")
"""kubelet's links to the logs of containers."""


def remove(run_dir: Path, *, results: Path = _RESULTS, links: Path = _LINKS) -> None:
    """Removes the files that name something below a node's directory; those of other nodes and programs stay."""
    within = f"{run_dir}/"
    for file in results.iterdir() if results.is_dir() else ():
        with contextlib.suppress(OSError):
            if within.encode() in file.read_bytes():
                file.unlink()
    for link in links.iterdir() if links.is_dir() else ():
        with contextlib.suppress(OSError):
            if str(link.readlink()).startswith(within):
                link.unlink()
