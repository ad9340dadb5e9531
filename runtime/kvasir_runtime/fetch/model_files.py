"""Values of a download: the files that a source has under a uri, and how each is compared with what was stated."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Final, Literal

from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch.settings import SourceSettings

# Weights as safetensors only: a pickled checkpoint is never fetched, let alone opened.
_FETCHED: Final = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model*")
_DENSE: Final = "_Dense"
# The same weights once more, as their authors' own code has them, and those of other runtimes in directories: of any
# whose name does not end like those of layers behind pooling, which sentence-transformers calls 2_Dense.
_UNUSED: Final = (
    "consolidated*.safetensors",
    *(f"*[!{_DENSE[at]}]{_DENSE[at + 1 :]}/*.safetensors" for at in range(len(_DENSE))),
)
PATTERNS: Final = (_FETCHED, _UNUSED)
"""What is fetched, and what of it is not, as huggingface_hub takes patterns."""


class BrokenTransferError(Exception):
    """A connection that could not be made, broke or ended early: worth another try, unlike a refusal.

    advice: what to do where the tries fail, if it is not about the connection.
    """

    def __init__(self, why: str, advice: str = "") -> None:
        super().__init__(why)
        self._advice = advice

    def told(self) -> str:
        """What happened, and what to do."""
        return f"{self}; {self._advice or SourceSettings.of().unreached}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checksum:
    """value: hexadecimal. part_bytes: of md5 over the md5 of parts of that size, as S3 has for objects that were
    uploaded in parts; 0 for a digest of the whole. git: SHA-1 of a header with size and the content. size: bytes."""

    algorithm: Literal["sha256", "md5", "git"]
    value: str
    part_bytes: int = 0
    size: int = 0

    def digest(self) -> "RunningDigest":
        """One that has seen nothing yet."""
        return RunningDigest(self)


class RunningDigest:
    """The digest of bytes that come in order."""

    def __init__(self, checksum: Checksum) -> None:
        self._checksum = checksum
        self._hash, self._parts, self._seen = self._fresh(), b"", 0

    def update(self, piece: bytes) -> None:
        """Count the next bytes."""
        size = self._checksum.part_bytes
        if not size:
            self._hash.update(piece)
            return
        view = memoryview(piece)
        while view:
            taken = view[: size - self._seen]
            self._hash.update(taken)
            self._seen, view = self._seen + len(taken), view[len(taken) :]
            if self._seen == size:
                self._end_part()

    def matches(self) -> bool:
        """Whether all bytes together have the stated digest."""
        if self._seen:
            self._end_part()
        found = hashlib.md5(self._parts, usedforsecurity=False) if self._checksum.part_bytes else self._hash
        return found.hexdigest() == self._checksum.value

    def _end_part(self) -> None:
        self._parts += self._hash.digest()
        self._hash, self._seen = self._fresh(), 0

    def _fresh(self) -> "hashlib._Hash":
        if self._checksum.algorithm == "git":
            return hashlib.sha1(f"blob {self._checksum.size}\0".encode(), usedforsecurity=False)
        return hashlib.new(self._checksum.algorithm, usedforsecurity=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes of a file that come. start: offset of the first one; 0 where a source sends all whatever was asked for."""

    start: int
    pieces: Iterator[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file of a source. name: its path in the model's folder. size: bytes.

    opened: the bytes from an offset on; it raises BrokenTransferError for what another try may cure, and
    ModelUnavailableError. checksum: what the source states of it, None where it states nothing that can be computed;
    with the errors of opened. archive: the file is unpacked into the folder.
    """

    name: str
    size: int
    opened: Callable[[int], AbstractContextManager[Transfer]]
    checksum: Callable[[], Checksum | None]
    archive: Literal["", "tar", "zip"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteModel:
    """What a source has under a uri now. version: differs between contents, see `kvasir_api.model_uri`.

    uri: for messages, without a version.
    """

    uri: str
    version: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def unpacked_bytes(self) -> int:
        """Disk that it takes at most while it is fetched: beside an archive lies what it holds, weights that a
        compressor makes hardly smaller."""
        return sum(file.size * (3 if file.archive else 1) for file in self.files)


def is_needed(path: str) -> bool:
    """Whether a file of a checkpoint is one that serving needs, as huggingface_hub matches patterns."""
    return any(fnmatch(path, p) for p in _FETCHED) and not any(fnmatch(path, p) for p in _UNUSED)


def is_unpacked(path: str) -> bool:
    """Whether a file of an archive, which may hold the model in a directory, is one that serving needs."""
    name = path.rpartition("/")[2]
    return is_needed(name) or name.lower().endswith(gguf.SUFFIX)


def lone_gguf(names: Iterable[str]) -> tuple[str, ...]:
    """The parts of the one GGUF model among files, in order; none where there are several, or a part is missing."""
    found = {name for name in names if name.lower().endswith(gguf.SUFFIX)}
    parts = gguf.parts(min(found)) if found else ()
    return parts if found == {*parts} else ()


def is_inside(name: str) -> bool:
    """Whether a path with slashes leads to something below a folder, whatever is there."""
    return name.isprintable() and "\\" not in name and not {"", ".", ".."} & {*name.split("/")}


def checked_names(uri: str, names: Sequence[str]) -> None:
    """Raises ModelUnavailableError for names that lead out of the model's folder, and where there is no file."""
    wrong = [name for name in names if not is_inside(name)]
    if wrong:
        raise ModelUnavailableError(f"model {uri} is not fetched, as {wrong[0]!r:.100} is no path in a model's folder")
    if not names:
        raise ModelUnavailableError(
            f"there is no file of a model under {uri}; expected config.json and safetensors, or a .gguf file"
        )
