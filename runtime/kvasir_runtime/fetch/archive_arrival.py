"""Which checkpoint comes in archives, from the files that are unpacked of them: a start loads from it as soon as the
header of the last shard is there. Called by `model_store`, in the thread that unpacks, and when all was compared.

What comes later may replace or remove what a start has read, in a layer of an image above all: that is known when all
was unpacked, and what was loaded is void then.
"""

import struct
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

from kvasir_runtime.arriving import Shards
from kvasir_runtime.fetch.arrival import MOST_HEADER_BYTES, Arrival
from kvasir_runtime.fetch.model_folder import INDEX, shards

_READ_LATER: Final = (
    *("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "generation_config.json"),
    *("chat_template*", "preprocessor_config.json", "processor_config.json"),
)
"""What a start reads when all of the model is there, or once more then; other files change how weights are loaded."""


class ArchiveArrival:
    """Of archives that are all of a model."""

    def __init__(self, arrival: Arrival) -> None:
        self._arrival = arrival
        self._headers, self._sizes = dict[Path, bytes](), dict[Path, int]()
        self._folder: Path | None = None
        self._late = set[Path]()
        self._expected: set[str] | None = None
        self._is_given_up = False

    def grown(self, path: Path, size: int) -> None:
        """A file has more bytes now; it will have so many. Files come one after the other. Raises OSError."""
        if self._folder is not None:
            if path not in self._headers:
                self._late.add(path)
        elif path.name == INDEX:
            self._expected = None
        elif path.suffix == ".safetensors" and path not in self._headers and (header := _header(path, size)):
            self._headers[path], self._sizes[path] = header, size
            self._begin(path.parent)

    def removed(self, path: Path) -> None:
        """A file is there no more."""
        if self._folder is not None:
            self._late.add(path)
        elif path.name == INDEX:
            self._expected = None
        else:
            self._headers.pop(path, None)
            self._sizes.pop(path, None)

    def given_up(self) -> None:
        """What was unpacked while it came is removed, and all is unpacked once more when it is there."""
        self._is_given_up = True
        self._arrival.withdrawn()

    def compared(self, found: Path) -> None:
        """All of the archives is there, has its checksum and is unpacked. found: the model's folder. Raises OSError."""
        if (folder := self._folder) is None:
            return
        late = {path.relative_to(folder).as_posix() for path in self._late if path.is_relative_to(folder)}
        are_read_later = all(any(fnmatch(name, pattern) for pattern in _READ_LATER) for name in late)
        is_void = self._is_given_up or not are_read_later
        self._arrival.grown(sorted({name.partition("/")[0] for name in late}), is_void=is_void)
        if found != folder:  # the first one was of a part of the model
            self._arrival.moved(found)
        for path in self._headers:
            self._arrival.arrived(path.name)

    def _begin(self, folder: Path) -> None:
        """Where all else that weights are loaded with is there."""
        names = {path.name for path in self._headers if path.parent == folder}
        if len(names) < len(self._headers) or not (folder / "config.json").is_file():
            return
        if self._expected is None:  # an index of many tensors takes long to read
            self._expected = shards(folder)
        if names != self._expected:
            return
        self._folder = folder
        coming = Shards(
            headers={path.name: header for path, header in self._headers.items()},
            sizes={path.name: self._sizes[path] for path in self._headers},
            partials={name: name for name in names},
            rest=[path.name for path in folder.iterdir() if path.name not in names],
        )
        self._arrival.expect(folder, coming)
        for name in sorted(names):
            self._arrival.comes(name)


def _header(path: Path, size: int) -> bytes:
    """Length and JSON at the beginning of a shard; empty as long as they are not there, or are none."""
    with path.open("rb") as stream:
        begin = stream.read(8)
        length = struct.unpack("<Q", begin)[0] if len(begin) == 8 else size
        found = begin + stream.read(length) if length <= min(MOST_HEADER_BYTES, size - 8) else b""
    return found if len(found) == 8 + length else b""
