"""Models on a hub: what a name stands for, and its files in huggingface_hub's cache, whole and with the checksums that
the hub states. The only module that uses that library, which reads its environment once, when it is imported.
"""

import hashlib
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from errno import EDQUOT, EFBIG, ENOSPC
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvasir_api import names
from kvasir_api.forecast import readable
from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError, ModelUnavailableError

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

SCHEME: Final = "hf://"
# Weights as safetensors only: a pickled checkpoint is never fetched, let alone opened.
_FETCHED: Final = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model*")
# The same weights once more, as their authors' own code has them, and those of other runtimes in directories.
_UNUSED: Final = ("consolidated*.safetensors", "*/*.safetensors")
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_LISTING_S: Final = 30.0
"""Half of the time that an inspection pod has; the library itself sets no limit."""
_LOOK_S: Final = 0.5
_LEFT_S: Final = 60.0
"""An unfinished file that was not written for so long is of a process that died; any other is being fetched."""
_READ_BYTES: Final = 1 << 20
_DISK_IS_FULL: Final = (ENOSPC, EDQUOT, EFBIG)
_CHECKED: Final = ".checked"
"""Folder beside a repository's blobs with an empty file for each digest that was computed."""

OnBytes = Callable[[int, int], None]
"""Takes the bytes that are there and those that there will be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A repository, or one GGUF model of it. revision: a branch, tag or commit; empty for the main branch."""

    repository: str
    file: str = ""
    revision: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """name: path in the repository. digest: the sha256 of a large file, the Git object of a small one; hexadecimal."""

    name: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HubListing:
    """What a hub has under a name now: the commit, and the files that are fetched of it."""

    commit: str
    files: tuple[HubFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def parsed(model: str, revision: str = "") -> HubName | None:
    """The name of a model on the hub: hf://ORG/NAME[/FILE.gguf][@REVISION], or the same without hf:// and @REVISION.

    revision: where the name has none. None for what is no such name; raises ModelError for a broken one with hf://.
    """
    if not model.startswith(SCHEME):
        name, within = model, ""
    else:
        name, _, within = model.removeprefix(SCHEME).partition("@")
        if within and revision:
            raise ModelError(f"model {model} and --revision {revision} both name a revision")
    if is_file(name):
        repository, _, file = name.rpartition("/")
        return HubName(repository=repository, file=file, revision=within or revision)
    if is_name(name):
        return HubName(repository=name, revision=within or revision)
    if model.startswith(SCHEME):
        raise ModelError(f"model {model} is not of the form hf://ORG/NAME@REVISION or hf://ORG/NAME/FILE.gguf@REVISION")
    return None


def is_name(model: str) -> bool:
    """Whether a text can be the name of a repository, and does not look like a path."""
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    return not looks_like_path and _REPOSITORY.fullmatch(model) is not None


def is_file(model: str) -> bool:
    """Whether a text can be a GGUF file of a repository: ORG/NAME/FILE.gguf, and does not look like a path."""
    repository, _, file = model.rpartition("/")
    named = repository.count("/") == 1 and is_name(repository)
    return named and file.lower().endswith(gguf.SUFFIX) and _REPOSITORY.fullmatch(file) is not None


def listing(name: HubName) -> HubListing:
    """What the hub has under the name now. Raises ModelUnavailableError."""
    _configure(os.environ)
    try:
        return _listed(name)
    except Exception as error:
        raise _unavailable(name, error) from error


def config_file(name: HubName, commit: str) -> Path:
    """config.json alone, of a commit. Raises ModelUnavailableError."""
    _configure(os.environ)
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name.repository, "config.json", revision=commit or name.revision or None))
    except Exception as error:
        raise _unavailable(name, error, file="config.json") from error


def fetch(name: HubName, on_bytes: OnBytes | None = None) -> Path:
    """The folder with the model's files, or the first GGUF file, after a download if need be.

    What the cache holds is used where the hub cannot be reached. Raises ModelUnavailableError.
    """
    _configure(os.environ)
    try:
        found = _listed(name)
    except Exception:  # noqa: BLE001 -- the download below finds it in the cache, or meets the same error
        return _downloaded(name)
    cache = _Cache(name, found)
    cache.check_space()
    with _watched(cache, on_bytes):
        path = _downloaded(name)
    if cache.remove_damaged():
        with _watched(cache, on_bytes):
            path = _downloaded(name)
        if damaged := cache.remove_damaged():
            raise ModelUnavailableError(
                f"model {name.repository} comes with another checksum of {damaged[0]} than the hub states, fetched"
                " twice; a proxy or mirror on the way may change it"
            )
    return path


class _Cache:
    """What of a listing is in huggingface_hub's cache."""

    def __init__(self, name: HubName, found: HubListing) -> None:
        from huggingface_hub import constants

        self._name, self._found = name, found
        self._root = Path(constants.HF_HUB_CACHE)
        self._repository = self._root / f"models--{name.repository.replace('/', '--')}"
        self._snapshot = self._repository / "snapshots" / found.commit
        self._left = {path for path in self._partial() if _age_s(path) > _LEFT_S}

    @property
    def size(self) -> int:
        """Bytes that there will be."""
        return self._found.size

    def held(self) -> int:
        """Bytes that are there, those of unfinished files included."""
        whole = sum(file.size for file in self._found.files if (self._snapshot / file.name).exists())
        return min(self.size, whole + sum(map(_size, self._partial() - self._left)))

    def check_space(self) -> None:
        """Raises ModelUnavailableError where the disk has less room than the rest of the files takes."""
        rest = self.size - self.held()
        there = next(path for path in (self._repository, *self._repository.parents) if path.exists())
        if rest and rest > (free := shutil.disk_usage(there).free):
            raise ModelUnavailableError(
                f"model {self._name.repository} needs {readable(rest)} of disk in {self._root}, where"
                f" {readable(free)} are free"
            )

    def remove_damaged(self) -> list[str]:
        """Compute each file's digest once, and remove files with another one than the hub states. Returns those."""
        marks = self._repository / _CHECKED
        try:
            marks.mkdir(exist_ok=True)
        except OSError:
            return []  # a cache that is only read: nothing was written here
        unknown = [file for file in self._found.files if file.digest and not (marks / file.digest).exists()]
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as threads:
            is_whole = list(threads.map(lambda file: _is_whole(self._snapshot / file.name, file), unknown))
        damaged = []
        for file, whole in zip(unknown, is_whole, strict=True):
            if whole:
                (marks / file.digest).touch()
                continue
            path = self._snapshot / file.name
            path.resolve().unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            damaged.append(file.name)
        return damaged

    def _partial(self) -> set[Path]:
        return set((self._repository / "blobs").glob("*.incomplete"))


@contextmanager
def _watched(cache: _Cache, on_bytes: OnBytes | None) -> Iterator[None]:
    """Report the bytes while a download runs. The library's bars know neither cached files nor all of the sizes."""
    if on_bytes is None:
        yield
        return
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(_LOOK_S):
            on_bytes(cache.held(), cache.size)

    on_bytes(cache.held(), cache.size)
    thread = threading.Thread(target=look, name="download-progress", daemon=True)
    thread.start()
    try:
        yield
        on_bytes(cache.size, cache.size)
    finally:
        ended.set()
        thread.join()


def _age_s(path: Path) -> float:
    """Seconds since it was written."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0  # just finished


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # just finished


def _is_whole(path: Path, file: HubFile) -> bool:
    """Whether a file has its digest: SHA-256 of 64 digits, or Git's object id, SHA-1 of a header and the content."""
    if len(file.digest) == 64:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(f"blob {file.size}\0".encode(), usedforsecurity=False)
    try:
        with path.open("rb") as stream:
            while piece := stream.read(_READ_BYTES):
                digest.update(piece)
    except OSError:
        return False
    return digest.hexdigest() == file.digest


def _listed(name: HubName) -> HubListing:
    from huggingface_hub import HfApi

    revision = name.revision or None
    found: ModelInfo = HfApi().model_info(name.repository, revision=revision, files_metadata=True, timeout=_LISTING_S)
    parts = frozenset(gguf.parts(name.file)) if name.file else frozenset()
    siblings = found.siblings or ()
    fetched = [f for f in siblings if (f.rfilename in parts if parts else _is_fetched(f.rfilename))]
    return HubListing(
        commit=found.sha or "",
        files=tuple(
            HubFile(name=f.rfilename, size=f.size or 0, digest=(f.lfs.sha256 if f.lfs else f.blob_id) or "")
            for f in fetched
        ),
    )


def _is_fetched(path: str) -> bool:
    """Whether a repository's file is one that serving needs, as huggingface_hub matches patterns."""
    return any(fnmatch(path, p) for p in _FETCHED) and not any(fnmatch(path, p) for p in _UNUSED)


def _downloaded(name: HubName) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download

    revision = name.revision or None
    try:
        if name.file:
            parts = [hf_hub_download(name.repository, part, revision=revision) for part in gguf.parts(name.file)]
            return Path(parts[0])
        allowed, ignored = [*_FETCHED], [*_UNUSED]
        return Path(
            snapshot_download(name.repository, revision=revision, allow_patterns=allowed, ignore_patterns=ignored)
        )
    except Exception as error:  # whatever the library's HTTP client raises: cut off, led in circles, too slow
        raise _unavailable(name, error, file=name.file) from error


def _configure(environment: MutableMapping[str, str]) -> None:
    """What a pod has for reaching the hub, in the variables of huggingface_hub and of its HTTP client.

    Raises ModelUnavailableError for an endpoint or a proxy that is no URL.
    """
    if not (given := environment.get(names.ENV_HUB_SETTINGS)):
        return
    folder = Path(given)
    environment["HF_TOKEN_PATH"] = str(folder / "token")
    if (folder / "ca.crt").is_file():
        environment["SSL_CERT_FILE"] = str(folder / "ca.crt")
    for key, variables in (("endpoint", ("HF_ENDPOINT",)), ("proxy", ("HTTPS_PROXY", "HTTP_PROXY"))):
        if not (folder / key).is_file():
            continue
        url = (folder / key).read_text(errors="replace").strip()
        if not url.startswith(("http://", "https://")):
            raise ModelUnavailableError(
                f"key {key} of the Secret of spec.model.secretName is no http:// or https:// URL"
            )
        environment.update(dict.fromkeys(variables, url))


def _unavailable(name: HubName, error: Exception, *, file: str = "") -> ModelUnavailableError:
    """One line for what went wrong, with what to do."""
    from huggingface_hub import errors

    if isinstance(error, ModelUnavailableError):
        return error
    model = f"model {name.repository}"
    match error:
        case errors.GatedRepoError():
            return ModelUnavailableError(f"{model} is gated: accept its terms on the hub and {_token()}")
        case errors.EntryNotFoundError() if not isinstance(error, errors.LocalEntryNotFoundError):
            return ModelUnavailableError(f"repository {name.repository} on the hub has no {file}")
        case errors.RevisionNotFoundError():
            return ModelUnavailableError(f"{model} has no revision {name.revision} on the hub")
        case errors.RepositoryNotFoundError():
            return ModelUnavailableError(
                f"{model} is neither a directory nor a public repository on the hub; for a private one, {_token()}"
            )
        case errors.LocalEntryNotFoundError() if isinstance(error.__cause__, errors.HfHubHTTPError):
            # The hub's library raises this for any unexpected response, too.
            return ModelUnavailableError(_unfetched(model, error.__cause__))
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():
            return ModelUnavailableError(
                f"{model} is not a directory, is not in the local cache, and the hub cannot be reached"
                f" (or HF_HUB_OFFLINE is set){_because(error)}"
            )
    return ModelUnavailableError(_unfetched(model, error))


def _unfetched(model: str, error: BaseException) -> str:
    if full := next((one for one in _chain(error) if getattr(one, "errno", None) in _DISK_IS_FULL), None):
        return f"{model} could not be stored: {full}; give its cache more room"
    lines = str(error).splitlines() or [type(error).__name__]
    status = getattr(getattr(error, "response", None), "status_code", 0)
    advice = f"; {_token()}" if status in (401, 403) else ""
    return f"{model} could not be fetched from the hub: {lines[0]}{advice}"


def _because(error: BaseException) -> str:
    """The first words of the connection's own error, such as a certificate that is not trusted."""
    cause = next((one for one in reversed(_chain(error)) if isinstance(one, OSError) and one.strerror), None)
    return f": {cause.strerror}" if cause is not None else ""


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error and those that it came of."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _token() -> str:
    if names.ENV_HUB_SETTINGS in os.environ:
        return "put a token that may read it under the key token into the Secret of spec.model.secretName"
    return "set HF_TOKEN to a token that may read it"
