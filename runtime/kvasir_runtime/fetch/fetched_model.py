"""A model under a uri: what its source has now, its config, and its files on this machine."""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from kvasir_api import hf_config, model_uri, names
from kvasir_runtime.errors import ModelUnavailableError
from kvasir_runtime.fetch import cache_limit, gguf_headers
from kvasir_runtime.fetch.archives import WebFile
from kvasir_runtime.fetch.arrival import Arrival
from kvasir_runtime.fetch.buckets import Bucket
from kvasir_runtime.fetch.model_files import BrokenTransferError, RemoteFile, RemoteModel, lone_gguf
from kvasir_runtime.fetch.model_folder import model_folder
from kvasir_runtime.fetch.model_store import WHOLE, ModelStore
from kvasir_runtime.fetch.progress import OnBytes
from kvasir_runtime.fetch.registries import Registry
from kvasir_runtime.fetch.settings import SourceSettings

LOG: Final = logging.getLogger(__name__)
_CONFIG: Final = "config.json"
_CONFIG_BYTES: Final = 2**20
_WAITS_S: Final = (1.0, 3.0)
"""Between tries of a listing, which an inspection pod has a minute for."""
_LAST: Final = ".last"
"""Folder with a file for each uri that was fetched, in which its version stands."""


class _Source(Protocol):
    def model(self) -> RemoteModel: ...


_SOURCES: Final[Mapping[str, Callable[[str, SourceSettings], _Source]]] = {
    model_uri.S3: Bucket,
    model_uri.GCS: Bucket,
    model_uri.HTTPS: WebFile,
    model_uri.OCI: Registry,
}


def listing(uri: str, sleep: Callable[[float], None] = time.sleep) -> RemoteModel:
    """What lies under the uri now. Raises ModelError, ModelUnavailableError."""
    settings = SourceSettings.of()
    settings.check_online(model_uri.unpinned(uri))
    source = _SOURCES[uri[: uri.index("://") + 3]](uri, settings)
    for wait_s in (*_WAITS_S, None):
        try:
            found = source.model()
            break
        except BrokenTransferError as error:
            if wait_s is None:
                raise ModelUnavailableError(
                    f"model {model_uri.unpinned(uri)} cannot be reached: {error.told()}"
                ) from error
            sleep(wait_s)
    wanted = model_uri.version(uri)
    if wanted and found.version != wanted:
        raise ModelUnavailableError(
            f"model {model_uri.unpinned(uri)} has changed since its version {wanted[:12]} was listed; write models"
            " under a new prefix, and name that in spec.model.uri"
        )
    return found


def config(model: RemoteModel) -> dict[str, Any]:
    """config.json alone, or what the header of the one GGUF model states in its place.

    Raises ValueError where neither is a file of its own, ModelUnavailableError.
    """
    given = {file.name: file for file in model.files if not file.archive}
    file = given.get(_CONFIG)
    if file is None and (parts := lone_gguf(given)):
        return gguf_headers.config([given[part] for part in parts])
    if file is None:
        raise ValueError(f"the config of {model.uri} is read when a replica has fetched it")
    beside = given.get(hf_config.QUANTIZATION_FILE)
    return hf_config.with_quantization(_object(model.uri, file), _object(model.uri, beside) if beside else {})


def _object(uri: str, file: RemoteFile) -> dict[str, Any]:
    """A JSON object. Raises ValueError, ModelUnavailableError."""
    if file.size > _CONFIG_BYTES:
        raise ValueError(f"{file.name} of {uri} has {file.size} bytes, more than {_CONFIG_BYTES}")
    try:
        with file.opened(0) as transfer:
            found = json.loads(b"".join(transfer.pieces))
    except BrokenTransferError as error:
        raise ModelUnavailableError(f"model {uri} cannot be reached: {error.told()}") from error
    except RecursionError as error:
        raise ValueError(f"{file.name} of {uri} is nested too deep") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file.name} of {uri} is not a JSON object")
    return found


def fetch(
    uri: str,
    on_bytes: OnBytes | None = None,
    sleep: Callable[[float], None] = time.sleep,
    arrival: Arrival | None = None,
) -> Path:
    """The folder with the model's files, after a download if need be. Raises ModelError, ModelUnavailableError.

    arrival: of a start that goes on while weights come. A version that is there is used without a look at the source;
    so is the last one of a uri whose source is not reached.
    """
    root, version = cache_folder(), model_uri.version(uri)
    if version and (there := _held(ModelStore(root, uri, version))):
        return there
    last = root / _LAST / ModelStore(root, uri, "").entry.name
    try:
        found = listing(uri, sleep)
    except ModelUnavailableError as error:
        known = last.read_text() if not version and last.is_file() else ""
        if known and (there := _held(ModelStore(root, uri, known))):
            LOG.warning("the version that was fetched last is used, %s: %s", there, error)
            return there
        held = ModelStore(root, uri, version or known)
        if lost := held.lost():
            why = str(error).removeprefix(names.MODEL_UNAVAILABLE)
            raise ModelUnavailableError(
                f"model {model_uri.unpinned(uri)} lacks {lost} in the cache, {held.entry}; it is fetched when its"
                f" source is reached: {why}"
            ) from error
        raise
    store = ModelStore(root, uri, found.version, sleep, arrival)
    if _held(store) is None:
        cache_limit.make_room(store.entry, found.unpacked_bytes - cache_limit.size(store.entry))
    folder = store.fetched(found, on_bytes)
    last.parent.mkdir(exist_ok=True)
    last.write_text(found.version)
    return folder


def kept(root: Path) -> Iterator[tuple[str, Path]]:
    """Names and folders of the models that are whole in a folder of models."""
    for mark in sorted(root.glob(f"[!.]*/{WHOLE}")):
        yield mark.parent.name, model_folder(mark.parent)


def _held(store: ModelStore) -> Path | None:
    """The model of a store if it is whole, which no other process removes from now on."""
    cache_limit.hold(store.entry)
    return store.whole()


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where models are kept: KVASIR_MODEL_CACHE, else below the user's cache."""
    if given := environment.get(names.ENV_MODEL_CACHE):
        return Path(given).expanduser()
    return Path(environment.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "kvasir" / "models"
