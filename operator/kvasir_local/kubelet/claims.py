"""Which cluster has which network of this machine, by a file for each claim: ROOT/INDEX/claim.json.

Called by `host` under its lock. A claim is written before anything of its network is made, and removed after all of it.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from kvasir_local.credentials import write_private

_FILE: Final = "claim.json"


class NetworkClaim(msgspec.Struct, frozen=True, kw_only=True):
    """state_dir: of the cluster, absolute; boot_id: with the machine's next start its links and mounts are gone."""

    state_dir: str
    boot_id: str


def write(root: Path, index: int, claim: NetworkClaim) -> None:
    write_private(root / str(index) / _FILE, msgspec.json.encode(claim))


def owned(root: Path, state_dir: Path) -> list[int]:
    """Indices of the networks that clusters of this directory have taken, in this boot or before."""
    return sorted(index for index, claim in _claims(root) if claim.state_dir == str(state_dir))


def present(root: Path, boot_id: str) -> set[int]:
    """Indices of the networks that were taken in this boot."""
    return {index for index, claim in _claims(root) if claim.boot_id == boot_id}


def _claims(root: Path) -> Iterator[tuple[int, NetworkClaim]]:
    for file in root.glob(f"[0-9]*/{_FILE}"):
        with contextlib.suppress(OSError, msgspec.DecodeError):  # removed meanwhile, or not ours
            yield int(file.parent.name), msgspec.json.decode(file.read_bytes(), type=NetworkClaim)
