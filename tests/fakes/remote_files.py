"""Files of a source and archives of them, in tests of fetching."""

import contextlib
import hashlib
import io
import tarfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from kvasir_runtime.fetch.model_files import BrokenTransferError, Checksum, RemoteFile, RemoteModel, Transfer

URI: Final = "s3://bucket/models/tiny"
VERSION: Final = "a" * 64
WEIGHTS: Final = bytes(range(256)) * 400
Kind = Literal["", "tar", "zip"]


class Source:
    """A file whose bytes come in pieces of 1000. breaks: after so many pieces a transfer ends, one by one; then it does
    not. starts: from where each transfer was asked for."""

    def __init__(
        self, content: bytes = WEIGHTS, breaks: Sequence[int] = (), *, knows_parts: bool = True, stated: str = ""
    ) -> None:
        self.content, self.breaks, self.knows_parts = content, list(breaks), knows_parts
        self.stated = stated or hashlib.sha256(content).hexdigest()
        self.starts: list[int] = []

    @contextlib.contextmanager
    def opened(self, offset: int) -> Iterator[Transfer]:
        start = offset if self.knows_parts else 0
        self.starts.append(start)
        yield Transfer(start=start, pieces=self.pieces(start))

    def pieces(self, start: int) -> Iterator[bytes]:
        left = self.breaks.pop(0) if self.breaks else -1
        for at in range(start, len(self.content), 1000):
            if left == 0:
                raise BrokenTransferError("the connection was reset")
            left -= 1
            yield self.content[at : at + 1000]

    def file(self, name: str = "model.safetensors", size: int = 0, archive: Kind = "") -> RemoteFile:
        """size: what is stated, if it is not that of the content."""
        stated = Checksum(algorithm="sha256", value=self.stated)
        length = size or len(self.content)
        return RemoteFile(name=name, size=length, opened=self.opened, checksum=lambda: stated, archive=archive)


def model(*files: RemoteFile) -> RemoteModel:
    """What a source has."""
    return RemoteModel(uri=URI, version=VERSION, files=files)


def packed(entries: Mapping[str, bytes | None], kind: Literal["w", "w:gz", "w:xz"] = "w:gz") -> bytes:
    """A tar archive. entries: content by name, None for a link that leads elsewhere."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=kind) as archive:
        for name, content in entries.items():
            entry = tarfile.TarInfo(name)
            if content is None:
                entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


class Entries(dict[str, bytes | None]):
    """Of an archive in which a name may stand twice."""

    def __init__(self, pairs: Sequence[tuple[str, bytes | None]]) -> None:
        super().__init__(pairs)
        self._pairs = pairs

    def items(self) -> Any:
        """In order."""
        return self._pairs


def zipped(entries: Mapping[str, bytes]) -> bytes:
    """A zip archive. entries: content by name."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return stream.getvalue()


def wait_until(is_so: Callable[[], object]) -> None:
    """What a thread that fetches or unpacks does."""
    deadline = time.monotonic() + 100
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.01)
