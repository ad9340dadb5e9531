"""The API keys that clients may use: those given at the start, and those of a file or directory, which is read again.

A directory is what a mounted Secret is: each file holds keys, one per line. The middleware checks each request, and
the process runs `watch`. Keys are kept as hashes and are never shown: a log line has their number. Each key
is a tenant with a name, which does not depend on the other lines of its file.
"""

import asyncio
import hashlib
import logging
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from kvasir_api import names
from kvasir_runtime.errors import ModelError

RELOAD_INTERVAL_S: Final = 1.0
MAX_BYTES: Final = 1_048_576
"""What a Secret can hold; a larger file is no list of keys."""

log = logging.getLogger("kvasir.keys")

_OF_OPTIONS: Final = re.compile(r"api-key-\d+")
_HASH_DIGITS: Final = 8


class KeyNames(NamedTuple):
    """Of the tenant that a key is. shown: one of the others. own: of this key alone. file: of all keys of its file."""

    shown: str
    own: str
    file: str

    @classmethod
    def alike(cls, name: str) -> "KeyNames":
        """Where there is one name."""
        return cls(name, name, name)


Digests = dict[bytes, KeyNames]
"""Hashes of keys, each with the names of its tenant."""
_NOBODY: Final = KeyNames.alike("")


class ApiKeys:
    """given: keys that hold for the life of the process. path: file or directory of further ones, empty for none.

    Without either every request is accepted; with a path that holds no key, none is.
    """

    def __init__(self, given: Sequence[str], path: str = "") -> None:
        keys = enumerate((key for key in given if key.strip()), 1)
        self._given: Digests = {
            _digest(key.encode()): KeyNames.alike(f"api-key-{number}") for number, key in reversed(list(keys))
        }
        self._path, self._open = path, not given and not path
        self._found: Digests = {}
        self._former: Digests = {}
        self._next: Digests | None = None
        self._loaded = not path

    @property
    def watched(self) -> bool:
        """Whether there is a path to watch."""
        return bool(self._path)

    @property
    def locked(self) -> str:
        """Why no request is accepted; empty where one may be, and before the first load."""
        if self._open or self._given or self._found or not self._loaded:
            return ""
        return f"there is no key in {self._path or 'the options'}"

    @property
    def several(self) -> bool:
        """Whether there is more than one key, so that clients may be strangers to each other."""
        given, found = self._given, self._found
        return max(len(given), len(found)) > 1 or bool(given and found and given.keys() != found.keys())

    def accepts(self, presented: Iterable[bytes]) -> bool:
        """Whether one of the keys that a request carries is valid.

        Hashes are compared, not keys, so that the time that this takes reveals nothing of a key.
        """
        return self._open or any(digest in self._given or digest in self._found for digest in map(_digest, presented))

    def tenant(self, key: bytes) -> KeyNames:
        """The names of the tenant whose key this is, never a part of the key; all "" for no tenant."""
        digest = _digest(key)
        return self._given.get(digest) or self._found.get(digest, _NOBODY)

    def digests(self, tenant: str) -> list[bytes]:
        """SHA-256 of the keys that have or had this name, their own or that of their file, while this process ran."""
        return list(dict.fromkeys(digest for digest, named in self._ever if tenant in named))

    def shown(self, tenant: str) -> set[str]:
        """How the tenants of those keys are called."""
        return {named.shown for _, named in self._ever if tenant in named}

    @property
    def _ever(self) -> list[tuple[bytes, KeyNames]]:
        """Keys that are valid, or were while this process ran."""
        return [*self._given.items(), *self._found.items(), *self._former.items()]

    def load(self, *, may_come: bool) -> None:
        """Load the keys for the first time. may_come: whether keys may be added later.

        Raises ModelError when the path cannot be read, or when no request could ever be accepted.
        """
        try:
            self._found = _read(self._path) if self._path else {}
        except (OSError, ValueError) as error:
            raise ModelError(f"{names.KEYS_MISSING}keys cannot be read: {error}") from error
        self._loaded = True
        if self.locked and not (may_come and self._path):
            raise ModelError(f"{names.KEYS_MISSING}{self.locked}, so no request could be accepted")

    def reload(self) -> bool:
        """Read the path again; whether the keys changed. Raises OSError or ValueError, and then the old ones stay.

        A change counts when it is read twice: the files of a Secret are replaced one after the other.
        """
        found = _read(self._path)
        again, self._next = found == self._next, found
        if not again or found == self._found:
            return False
        self._former |= self._found
        self._found = found
        return True

    def __len__(self) -> int:
        return len(self._given | self._found)


async def watch(keys: ApiKeys, *, every_s: float = RELOAD_INTERVAL_S) -> None:
    """Follow the path until cancelled. A path that cannot be read is logged once, and keys stay as they are."""
    trouble = ""
    while True:
        await asyncio.sleep(every_s)
        try:
            changed = await asyncio.to_thread(keys.reload)
        except (OSError, ValueError) as error:
            if str(error) != trouble:
                log.warning("keys cannot be read, the previous ones stay valid: %s", error)
            trouble = str(error)
            continue
        trouble = ""
        if changed:
            log.log(logging.WARNING if keys.locked else logging.INFO, "keys changed: %d are accepted", len(keys))


def key_files(path: str) -> list[Path]:
    """A file, or the files of a directory by their names. Raises OSError."""
    where = Path(path)
    try:
        # A mounted Secret has its files behind links in names that begin with two dots.
        return sorted(file for file in where.iterdir() if not file.name.startswith("."))
    except NotADirectoryError:
        return [where]


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _read(path: str) -> Digests:
    """Keys of a file, or of the files of a directory; none where there is nothing. Raises OSError, and ValueError for
    more than MAX_BYTES.

    A tenant is called by the file of its key, and by a hash of the key too where the file has several: numbers of
    lines would pass from one key to another when a line is removed."""
    try:
        files = key_files(path)
    except FileNotFoundError:
        return {}
    found: Digests = {}
    left = MAX_BYTES
    for file in files:
        content = _content(file, left)
        left -= len(content)
        digests = {_digest(line.strip()) for line in content.splitlines() if line.strip()}
        shared = f"file/{file.name}" if _OF_OPTIONS.fullmatch(file.name) else file.name
        for digest in digests:
            own = f"{shared}/{digest.hex()[:_HASH_DIGITS]}"
            found.setdefault(digest, KeyNames(shared if len(digests) == 1 else own, own, shared))
    return found


def _content(file: Path, most: int) -> bytes:
    """A file that went away meanwhile, or that is none, holds nothing."""
    try:
        with file.open("rb") as served_model:
            content = served_model.read(most + 1)
    except (FileNotFoundError, IsADirectoryError):
        return b""
    if len(content) > most:
        raise ValueError(f"{file} is too long: keys may have {MAX_BYTES} bytes in all")
    return content
