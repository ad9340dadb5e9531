"""What a start that goes on before its model is whole knows of the download, and how it ends one that is of no use.

Called by what fetches, in its threads: `begun` when all but the weights is there, then `comes` and `arrived` for each
file of those.
"""

import os
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from kvasir_runtime import gguf
from kvasir_runtime.arriving import ArrivingFolder, Shards
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch import gguf_headers
from kvasir_runtime.fetch.model_files import BrokenTransferError, RemoteFile, is_inside, lone_gguf

_SAFETENSORS: Final = ".safetensors"
MOST_HEADER_BYTES: Final = 100_000_000
"""As the library that reads such files has it."""
_FILES_AT_ONCE: Final = 8
LATE: Final = ".late"
"""A file of a model in a cache: what `Arrival.grown` was told."""


class Arrival:
    """on_begun: takes a folder that may be loaded from while files come; it is there as long as this object. None where
    the start waits for all of the model."""

    def __init__(self, on_begun: Callable[[Path], None] | None) -> None:
        self._on_begun, self._abandoned = on_begun, False
        self._folder: ArrivingFolder | None = None

    @property
    def loads_meanwhile(self) -> bool:
        """Whether files are loaded while others come."""
        return self._on_begun is not None

    def begun(
        self, folder: Path, names: Iterable[str], rest: Sequence[RemoteFile], partial: Callable[[RemoteFile], Path]
    ) -> None:
        """folder: where the files are or will be; names: of all. rest: those that are not there, and partial: where the
        bytes of one come. Anything but a checkpoint with shards to come, or the one GGUF model of a folder, is waited
        for."""
        first = "" if "config.json" in (named := {*names}) else next(iter(lone_gguf(named)), "")
        of_kind = gguf.SUFFIX if first else _SAFETENSORS
        are_shards = all(is_shard(file.name) and file.name.lower().endswith(of_kind) for file in rest)
        if not (self.loads_meanwhile and rest and are_shards and (first or "config.json" in named)):
            return
        try:
            with ThreadPoolExecutor(max_workers=_FILES_AT_ONCE) as threads:
                headers = list(threads.map(gguf_headers.header if first else _header, rest))
            shards = Shards(
                headers={file.name: header for file, header in zip(rest, headers, strict=True)},
                sizes={file.name: file.size for file in rest},
                partials={file.name: os.path.relpath(partial(file), folder) for file in rest},
                first=first,
            )
            self.expect(folder, shards)
        except (BrokenTransferError, ModelError, ModelUnavailableError, OSError):
            return  # it is fetched whole then, and the download says what is wrong, if it is still so

    def expect(self, folder: Path, shards: Shards) -> None:
        """These shards of a folder are to come; all else of it is there. Raises OSError."""
        assert self._on_begun is not None
        self._folder = ArrivingFolder(folder, shards)
        self._on_begun(self._folder.path)

    def comes(self, name: str) -> None:
        """A file is about to grow where its bytes come."""
        if self._folder is not None:
            self._folder.comes(name)

    def grown(self, names: Sequence[str], *, is_void: bool) -> None:
        """These files of the folder came after it had begun. is_void: what was loaded meanwhile does not count."""
        if self._folder is not None:
            self._folder.grown(names, is_void=is_void)

    def withdrawn(self) -> None:
        """No other start is to begin with what was expected."""

    def moved(self, folder: Path) -> None:
        """The model is in this folder, and not in that which a start was given."""
        if self._folder is not None:
            self._folder.moved(folder)

    def arrived(self, name: str) -> None:
        """A file is whole, and was compared with its checksum."""
        if self._folder is not None:
            self._folder.arrived(name)

    def abandon(self) -> None:
        """Nothing waits for the model any more: the download ends at its next piece."""
        self._abandoned = True

    def check(self) -> None:
        """Raises ModelUnavailableError for a download that was abandoned."""
        if self._abandoned:
            raise ModelUnavailableError("the download was abandoned, since the start ended")


def is_shard(name: str) -> bool:
    """Whether a file may be loaded while it comes: one with weights in the model's own folder."""
    return is_inside(name) and "/" not in name and has_weights(name)


def has_weights(name: str) -> bool:
    """Whether a file is fetched after all others, of which it has what they describe."""
    return (name.endswith(_SAFETENSORS) and "/" not in name) or name.lower().endswith(gguf.SUFFIX)


def _header(file: RemoteFile) -> bytes:
    """Length and JSON at the beginning of a shard. Raises BrokenTransferError, also for what is none."""
    found = bytearray()
    with file.opened(0) as transfer:
        for piece in transfer.pieces:
            found += piece
            if len(found) < 8:
                continue
            (length,) = struct.unpack("<Q", found[:8])
            if length > min(MOST_HEADER_BYTES, file.size):
                break
            if len(found) >= 8 + length:
                return bytes(found[: 8 + length])
    raise BrokenTransferError(f"{file.name} begins with no header")
