"""Unpacks an archive into a model's folder, of an image one layer over those below it. Called by `model_store`."""

import lzma
import os
import struct
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Final, Literal, Self, cast

from kvasir_runtime.fetch.model_files import is_inside, is_unpacked

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

_READ_BYTES: Final = 1 << 20
_MOST_FILES: Final = 10_000
_WHITEOUT: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_BROKEN: Final = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    zstd.ZstdError,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
)
"""What the libraries raise for content that is no such archive; besides, OSError without a number."""

_ZSTD_FRAME: Final = bytes.fromhex("28b52ffd")
_ZSTD_SKIPPED: Final = range(0x184D2A50, 0x184D2A60)
"""What frames begin with that hold no content, which may come first (RFC 8878, section 3.1.2); little-endian."""

_MOST_HEADER_BYTES: Final = 1 << 20
"""Of what describes an entry of a tar archive, its name and where it is sparse, which tarfile reads as a whole; it is
some kilobytes. Compressed, 4 GiB take 130 kB.
"""

_Opened = Callable[[], AbstractContextManager[IO[bytes]]]


class BrokenArchiveError(Exception):
    """What is wrong with an archive."""


class _Header:
    """What is read of a tar archive for one entry, without its content."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream, self._left = stream, _MOST_HEADER_BYTES

    def read(self, num_bytes: int) -> bytes:
        """Raises BrokenArchiveError, before too much is read."""
        self._left -= num_bytes
        if self._left < 0:
            raise BrokenArchiveError(f"an entry is described by more than {_MOST_HEADER_BYTES:,} bytes")
        return self._stream.read(num_bytes)

    def seek(self, place: int) -> int:
        return self._stream.seek(place)

    def tell(self) -> int:
        return self._stream.tell()


class _Member(tarfile.TarInfo):
    """An entry of a tar archive whose description does not fill the memory."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """As of TarInfo. Raises BrokenArchiveError too."""
        stream = cast(IO[bytes], tarfile.fileobj)
        tarfile.fileobj = cast(IO[bytes], _Header(stream))
        try:
            return super().fromtarfile(tarfile)
        finally:
            tarfile.fileobj = stream


def unpack(
    archive: IO[bytes],
    kind: Literal["tar", "zip"],
    folder: Path,
    given: Collection[str],
    reserve: Callable[[int], None],
    on_grown: Callable[[Path, int], None] = lambda _, __: None,
    on_removed: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write the files of an archive that serving needs, and no links, devices or paths that lead elsewhere.

    What it says is removed of the layers below (whiteouts) is removed, whatever its order, after the OCI image format
    specification 1.1, section Layer. given: paths in the folder that are no archive's and stay as they are. reserve:
    takes the bytes that a file adds, before they are written. on_grown: takes a file that is begun or has more bytes
    now, and how many it will have. on_removed: one that is removed. After an error none of its files is there. Raises
    BrokenArchiveError, and what these functions and the disk raise.
    """
    written = set[str]()
    try:
        for name, size, opened in _files(archive, kind):
            parent, slash, last = name.rpartition("/")
            if last.startswith(_WHITEOUT) and _checked(name):
                removed = parent if last == _OPAQUE else _checked(parent + slash + last.removeprefix(_WHITEOUT))
                for path in _remove(folder, folder / removed, {*written, *given}):
                    on_removed(path)
            elif is_unpacked(name) and name not in given:
                path = folder / _checked(name)
                reserve(size - (path.stat().st_size if path.exists() else 0))
                written.add(name)
                if len(written) > _MOST_FILES:
                    raise BrokenArchiveError(f"it has more than {_MOST_FILES:,} files of models")
                with opened() as content:
                    _write(path, content, partial(on_grown, path, size))
    except BaseException as error:
        for name in written:
            (folder / name).unlink(missing_ok=True)
        if isinstance(error, _BROKEN) or (isinstance(error, OSError) and error.errno is None):
            raise BrokenArchiveError(str(error)) from error
        raise


def clear(folder: Path, given: Collection[str]) -> None:
    """Remove all that archives wrote. given: as of `unpack`."""
    _remove(folder, folder, given)


def _files(archive: IO[bytes], kind: Literal["tar", "zip"]) -> Iterator[tuple[str, int, _Opened]]:
    """Path, bytes and content of the regular files of an archive, in its order."""
    if kind == "zip":
        with zipfile.ZipFile(archive) as zipped:
            for entry in zipped.infolist():
                if not entry.is_dir():
                    yield entry.filename.removeprefix("./"), entry.file_size, partial(zipped.open, entry)
        return
    with _tar(archive) as packed:
        while (member := packed.next()) is not None:
            packed.members.clear()  # type: ignore[attr-defined]  # it keeps all that it has read, however many
            if member.size < 0:
                raise BrokenArchiveError(f"{member.name!r:.100} has {member.size} bytes")
            if member.isreg():
                yield member.name.removeprefix("./"), member.size, partial(_content, packed, member)


@contextmanager
def _tar(archive: IO[bytes]) -> Iterator[tarfile.TarFile]:
    """A tar archive, by its first bytes: as it is, or compressed with gzip, bzip2, xz or zstd. Frames of zstd that ask
    for a window of more than 128 MiB are refused by the library.
    """
    first = archive.read(4)
    archive.seek(0)
    if first == _ZSTD_FRAME or int.from_bytes(first, "little") in _ZSTD_SKIPPED:
        with zstd.ZstdFile(archive) as plain, tarfile.open(fileobj=plain, mode="r:", tarinfo=_Member) as packed:
            yield packed
        return
    with tarfile.open(fileobj=archive, mode="r:*", tarinfo=_Member) as packed:
        yield packed


def _content(packed: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    return cast(IO[bytes], packed.extractfile(member))


def _checked(name: str) -> str:
    if not is_inside(name):
        raise BrokenArchiveError(f"{name!r:.100} leads out of the model's folder")
    return name


def _remove(folder: Path, place: Path, kept: Collection[str]) -> list[Path]:
    """Remove what layers below wrote at a place in the folder and under it, and return those files."""
    found = [
        path
        for path in (place, *place.rglob("*"))
        if is_unpacked(within := path.relative_to(folder).as_posix()) and within not in kept and path.is_file()
    ]
    for path in found:
        path.unlink()
    return found


def _write(path: Path, content: IO[bytes], on_grown: Callable[[], None]) -> None:
    """As another file than one that is there, so that who reads that meanwhile never sees it change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with path.open("wb") as stream:
        on_grown()
        while piece := content.read(_READ_BYTES):
            stream.write(piece)
            stream.flush()
            on_grown()
        os.fsync(stream.fileno())
