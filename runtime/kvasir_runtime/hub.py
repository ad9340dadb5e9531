"""Models on a hub: what a name stands for, and its files in huggingface_hub's cache, whole and with the checksums that
the hub states. The only module that uses that library, which reads its environment once, when it is imported.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvasir_api import names
from kvasir_api.hf_config import QUANTIZATION_FILE
from kvasir_api.model_uri import HUB as SCHEME
from kvasir_runtime import gguf, hub_cache
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch import cache_limit, gguf_headers
from kvasir_runtime.fetch.arrival import Arrival
from kvasir_runtime.fetch.file_transfer import DISK_IS_FULL, not_stored
from kvasir_runtime.fetch.model_files import PATTERNS, BrokenTransferError, RemoteFile, Transfer, is_inside, is_needed
from kvasir_runtime.fetch.model_folder import gguf_models, missing
from kvasir_runtime.fetch.progress import OnBytes, watched
from kvasir_runtime.fetch.settings import SECRET, SourceSettings
from kvasir_runtime.hub_cache import COMMIT, HubCache, HubFile, HubListing

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

LOG: Final = logging.getLogger(__name__)
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
_PROXIES: Final = ("https_proxy", "http_proxy", "HTTPS_PROXY", "HTTP_PROXY")
_LISTING_S: Final = 30.0
"""Half of the time that an inspection pod has; the library itself sets no limit."""
_SILENCE_S: Final = 10.0
_TRIES: Final = 2
_DIGEST: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HubName:
    """A repository, or one GGUF model of it. revision: a branch, tag or commit; empty for the main branch."""

    repository: str
    file: str = ""
    revision: str = ""


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
        found = _asked(name)
    except Exception as error:
        raise _unavailable(name, error) from error
    return _listed(name, found)


def config_file(name: HubName, commit: str) -> Path:
    """config.json of a commit, with the file of its quantization beside it where there is one. Raises
    ModelUnavailableError."""
    _configure(os.environ)
    from huggingface_hub import errors, hf_hub_download

    try:
        SourceSettings.of().check_online(name.repository)
        path = Path(hf_hub_download(name.repository, "config.json", revision=commit or name.revision or None))
        if not hub_cache.is_settled(name.repository, QUANTIZATION_FILE, path.parent.name):
            try:
                hf_hub_download(name.repository, QUANTIZATION_FILE, revision=path.parent.name)
            except errors.EntryNotFoundError as error:
                answer = getattr(error.__cause__, "response", None)
                if isinstance(error, errors.LocalEntryNotFoundError) and getattr(answer, "status_code", 0) != 404:
                    raise  # the hub did not say so
    except Exception as error:
        raise _unavailable(name, error, file="config.json") from error
    return path


def gguf_config(name: HubName, found: HubListing, timeout_s: float = _SILENCE_S) -> dict[str, Any]:
    """What the header of a GGUF file states, in the form of config.json. Raises ValueError, ModelUnavailableError.

    timeout_s: for which the hub may send nothing.
    """
    at = {file.name: file for file in _remote_files(name, found, timeout_s)}
    return gguf_headers.config([at[part] for part in gguf.parts(name.file)])


def _remote_files(name: HubName, found: HubListing, timeout_s: float = _SILENCE_S) -> list[RemoteFile]:
    """The files of a listing as they are fetched. Raises ModelUnavailableError where a part of a GGUF model lacks."""
    there = {file.name for file in found.files}
    if missing := [part for part in (gguf.parts(name.file) if name.file else ()) if part not in there]:
        raise ModelUnavailableError(f"repository {name.repository} on the hub has no {missing[0]}; check its name")
    return [
        RemoteFile(
            name=file.name,
            size=file.size,
            opened=partial(_opened, name, found.commit, file.name, timeout_s),
            checksum=file.checksum,
        )
        for file in found.files
    ]


@contextmanager
def _opened(name: HubName, commit: str, file: str, timeout_s: float, offset: int) -> Iterator[Transfer]:
    """The bytes of a file from an offset on."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff  # type: ignore[attr-defined]  # they are exported lazily

    url = hf_hub_url(name.repository, file, revision=commit)
    part = {"Range": f"bytes={offset}-"} if offset else {}
    asked = http_stream_backoff(
        "GET", url, headers={**build_hf_headers(), **part}, timeout=timeout_s, max_retries=_TRIES - 1
    )
    with ExitStack() as stack:
        try:
            answer = stack.enter_context(asked)
            hf_raise_for_status(answer)
        except Exception as error:
            raise _unavailable(name, error, file=file) from error
        yield Transfer(start=offset if answer.status_code == 206 else 0, pieces=_pieces(answer.iter_bytes()))


def _pieces(answer: Iterator[bytes]) -> Iterator[bytes]:
    """Its errors as one that http_stream_backoff does not take for a reason to ask again: it cannot send twice."""
    try:
        yield from answer
    except Exception as error:
        raise BrokenTransferError((str(error).splitlines() or [type(error).__name__])[0]) from error


def fetch(
    name: HubName,
    on_bytes: OnBytes | None = None,
    sleep: Callable[[float], None] = time.sleep,
    arrival: Arrival | None = None,
    timeout_s: float = _LISTING_S,
) -> Path:
    """The folder with the model's files, or the first GGUF file, after a download if need be.

    arrival: of a start that goes on while weights come. timeout_s: for which the hub may send nothing of its listing. A
    commit that is whole in the cache is used without a look at the hub; so is what a branch or tag stood for last where
    the hub cannot be reached. Raises ModelUnavailableError.
    """
    _configure(os.environ)
    from huggingface_hub import constants

    root = Path(constants.HF_HUB_CACHE)
    cache_limit.hold(hub_cache.repository_folder(root, name.repository))
    if COMMIT.fullmatch(name.revision):
        with suppress(ModelUnavailableError):
            if there := _checked(name, root):
                return there
    try:
        answer = _asked(name, timeout_s)
    except Exception as error:  # noqa: BLE001 -- whatever the library's HTTP client raises: cut off, too slow
        return _kept(name, root, error)
    found = _listed(name, answer)
    cache = HubCache(root, name.repository, found, sleep, arrival)
    cache.make_room()
    cache.remove_leftovers()
    cache.check_space()
    files = _remote_files(name, found)
    with watched(cache.held, found.size, on_bytes):
        missing = cache.remove_damaged()
        cache.fetch([file for file in files if file.name in missing])  # each is compared before it is there
    cache.remember(name.revision or constants.DEFAULT_REVISION, name.file)
    return _path(name, cache.path())


def _asked(name: HubName, timeout_s: float = _LISTING_S) -> "ModelInfo":
    from huggingface_hub import HfApi

    SourceSettings.of().check_online(name.repository)
    return HfApi().model_info(name.repository, revision=name.revision or None, files_metadata=True, timeout=timeout_s)


def _listed(name: HubName, found: "ModelInfo") -> HubListing:
    """What is fetched of what the hub said. Names, commit and digests are parts of paths from here on, so that those
    which may lead elsewhere are refused. Raises ModelUnavailableError."""
    parts = frozenset(gguf.parts(name.file)) if name.file else frozenset()
    fetched = [
        HubFile(name=f.rfilename, size=f.size or 0, digest=(f.lfs.sha256 if f.lfs else f.blob_id) or "")
        for f in found.siblings or ()
        if (f.rfilename in parts if parts else is_needed(f.rfilename))
    ]
    wrong = "" if COMMIT.fullmatch(found.sha or "") else f"{found.sha!r:.100} is no commit"
    for file in fetched:
        if not is_inside(file.name):
            wrong = f"{file.name!r:.100} is no path in a repository"
        elif not _DIGEST.fullmatch(file.digest):
            wrong = f"{file.digest!r:.100} is no checksum of {file.name}"
    if wrong:
        raise ModelUnavailableError(f"model {name.repository} is not fetched, as the hub's listing is broken: {wrong}")
    return HubListing(commit=found.sha or "", files=tuple(fetched))


def _path(name: HubName, snapshot: Path) -> Path:
    """What a process loads of a commit's files."""
    return snapshot / gguf.parts(name.file)[0] if name.file else snapshot


def _checked(name: HubName, root: Path) -> Path | None:
    """The model where all of its files came and were compared before; None where that is not known. Raises
    ModelUnavailableError where one of them is not there any more."""
    from huggingface_hub import constants

    found = hub_cache.checked_snapshot(root, name.repository, name.revision or constants.DEFAULT_REVISION, name.file)
    if found is None:
        return None
    snapshot, lost = found
    if lost:
        raise _lacking(name, snapshot, lost)
    return _path(name, snapshot)


def _lacking(name: HubName, snapshot: Path, lost: str) -> ModelUnavailableError:
    return ModelUnavailableError(
        f"model {name.repository} lacks {lost} in the cache, {snapshot}; it is fetched when the hub is reached"
    )


def _kept(name: HubName, root: Path, refusal: Exception) -> Path:
    """What the cache has under the name: of files that were compared, else as the library itself stored it.

    refusal: why the hub gives no listing, which is being handled. Raises ModelUnavailableError.
    """
    from huggingface_hub import errors

    if isinstance(refusal, errors.RevisionNotFoundError):
        raise _unavailable(name, refusal) from refusal
    try:
        found = _checked(name, root) or _stored(name)
    except OSError as absent:  # the library's own LocalEntryNotFoundError among them
        answered = isinstance(refusal, (errors.HfHubHTTPError, ModelUnavailableError))
        raise _unavailable(name, refusal if answered else absent) from refusal
    except ModelUnavailableError as lacking:
        said, why = (
            str(error).removeprefix(names.MODEL_UNAVAILABLE) for error in (lacking, _unavailable(name, refusal))
        )
        raise ModelUnavailableError(f"{said}: {why}") from refusal
    LOG.warning("model %s is used as it is in the cache, %s: %s", name.repository, found, _unavailable(name, refusal))
    return found


def _stored(name: HubName) -> Path:
    """What the library finds on this machine, of which no list of files is known. Raises its LocalEntryNotFoundError,
    and ModelUnavailableError where the files that are there name one that is not."""
    from huggingface_hub import hf_hub_download, snapshot_download

    revision = name.revision or None
    if name.file:
        parts = gguf.parts(name.file)
        first, *_ = [hf_hub_download(name.repository, part, revision=revision, local_files_only=True) for part in parts]
        return Path(first)
    allowed, ignored = map(list, PATTERNS)
    found = snapshot_download(
        name.repository, revision=revision, local_files_only=True, allow_patterns=allowed, ignore_patterns=ignored
    )
    snapshot = Path(found)
    if named := " or ".join(f"{name.repository}/{file}" for file in gguf_models(snapshot)):
        raise ModelUnavailableError(f"model {name.repository} has no checkpoint in the cache, {snapshot}; name {named}")
    if lost := missing(snapshot):
        raise _lacking(name, snapshot, lost)
    return snapshot


def _configure(environment: MutableMapping[str, str]) -> None:
    """What a pod has for reaching the hub, in the variables of huggingface_hub and of its HTTP client.

    Raises ModelUnavailableError for an endpoint or a proxy that is no URL.
    """
    if not (given := environment.get(names.ENV_SOURCE_SETTINGS)):
        return
    folder = Path(given)
    environment["HF_TOKEN_PATH"] = str(folder / "token")
    if (folder / "ca.crt").is_file():
        environment["SSL_CERT_FILE"] = str(folder / "ca.crt")
    for key, variables in (("endpoint", ("HF_ENDPOINT",)), ("proxy", _PROXIES)):
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
            return ModelUnavailableError(f"repository {name.repository} on the hub has no {file}; check its name")
        case errors.RevisionNotFoundError():
            return ModelUnavailableError(
                f"{model} has no revision {name.revision} on the hub; name a branch, a tag or a commit that it has"
            )
        case errors.RepositoryNotFoundError():
            return ModelUnavailableError(
                f"{model} is neither a directory nor a public repository on the hub; for a private one, {_token()}"
            )
        case errors.LocalEntryNotFoundError() if isinstance(error.__cause__, errors.HfHubHTTPError):
            # The hub's library raises this for any unexpected response, too.
            return _unfetched(name, error.__cause__)
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():
            return ModelUnavailableError(
                f"{model} is not a directory, is not in the local cache, and the hub cannot be reached"
                f" (or HF_HUB_OFFLINE is set){_because(error)}; {SourceSettings.of().unreached}"
            )
    return _unfetched(name, error)


def _unfetched(name: HubName, error: BaseException) -> ModelUnavailableError:
    disk = (one for one in _chain(error) if isinstance(one, OSError) and one.errno in DISK_IS_FULL)
    if (full := next(disk, None)) is not None:
        return not_stored(name.repository, full)
    lines = str(error).splitlines() or [type(error).__name__]
    status = getattr(getattr(error, "response", None), "status_code", 0)
    advice = _token() if status in (401, 403) else SourceSettings.of().unreached
    return ModelUnavailableError(f"model {name.repository} could not be fetched from the hub: {lines[0]}; {advice}")


def _because(error: BaseException) -> str:
    """The first words of the connection's own error, such as a certificate that is not trusted."""
    cause = next((one for one in reversed(_chain(error)[1:]) if isinstance(one, OSError) and str(one)), None)
    return f": {cause.strerror or cause}" if cause is not None else ""


def _chain(error: BaseException | None) -> list[BaseException]:
    """An error and those that it came of."""
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _token() -> str:
    if SourceSettings.of().of_pod:
        return f"put a token that may read it under the key token into {SECRET}"
    return "set HF_TOKEN to a token that may read it"
