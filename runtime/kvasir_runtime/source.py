"""Where a model is: a directory or a GGUF file as it is, a name on the hub, which `hub` fetches, or a uri for `fetch`.

Called by both processes of a pod (the API needs the tokenizer, the engine the weights), so it imports no torch. The
files themselves are read by `models` and `weights`.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from kvasir_api import model_uri, names
from kvasir_api.speculation import WAYS, draft_model
from kvasir_runtime import gguf, hub
from kvasir_runtime.errors import ModelError
from kvasir_runtime.fetch import shared_cache
from kvasir_runtime.fetch.arrival import Arrival
from kvasir_runtime.fetch.model_folder import model_folder
from kvasir_runtime.fetch.progress import OnBytes

_OF_CHECKPOINT = frozenset({".safetensors", ".json", ".model"})
_NOT_ON_A_HUB = tuple(scheme for scheme in model_uri.FETCHED if scheme != model_uri.HUB)
SAMPLES = 32
SAMPLE_BYTES = 64 * 1024


def resolve(model: str, revision: str = "", on_bytes: OnBytes | None = None, arrival: Arrival | None = None) -> Path:
    """The directory that holds the model's files, or the first GGUF file of it, after a download if need be.

    model: a directory, a file, a hub name such as `Qwen/Qwen3-0.6B`, or `ORG/NAME/FILE.gguf` on the hub, also as
    hf://ORG/NAME@REVISION; or s3://BUCKET/PREFIX, gs://, oci://HOST/REPOSITORY:TAG, https://HOST/FILE#sha256=DIGEST.
    revision: a branch, tag or commit on the hub; its main branch without one. HF_HOME, HF_TOKEN
    and HF_HUB_OFFLINE are honoured. on_bytes: called about twice a second while a download runs. arrival: of a start
    that goes on while weights come. Raises ModelError with one line when there is no such directory or file,
    ModelUnavailableError when the model is not to be had.
    """
    if model_uri.is_fetched(model):
        return _fetched(model, revision, on_bytes, arrival)
    folder = Path(os.path.expanduser(model))  # noqa: PTH111 -- Path's own raises where the user is unknown
    if model and revision and folder.exists():
        raise ModelError(f"--revision {revision} is for models on the hub; {model} is on this machine")
    if model and folder.is_dir():
        # An image that is mounted has the model in any directory; elsewhere a directory is meant as it is named.
        is_image = os.environ.get(names.ENV_MODEL_URI, "").startswith(model_uri.OCI)
        return _lone_file(model_folder(folder) if is_image else folder)
    if model and gguf.is_gguf(folder):
        return folder
    if model and folder.exists():
        raise ModelError(f"model {model} is a file; expected a .gguf, or the directory of a Hugging Face checkpoint")
    if hub.parsed(model, revision) is None:
        raise ModelError(f"model directory {model} does not exist")
    return _fetched(model, revision, on_bytes, arrival)


def _fetched(model: str, revision: str, on_bytes: OnBytes | None, arrival: Arrival | None) -> Path:
    """A model that is no directory, after a download by this process or by the one that fetches for it."""
    named = None if model.startswith(_NOT_ON_A_HUB) else hub.parsed(model, revision)
    if named is None and revision:
        raise ModelError(f"--revision {revision} is for models on the hub; the uri {model} has its own version")
    if (cache := shared_cache.read_only()) is not None:
        return _lone_file(shared_cache.awaited(cache, model, on_bytes, arrival=arrival))
    if named is not None:
        return hub.fetch(named, on_bytes, arrival=arrival)
    from kvasir_runtime.fetch import fetched_model  # most starts have their model

    return _lone_file(fetched_model.fetch(model, on_bytes, arrival=arrival))


def resolve_drafter(speculation: str, on_bytes: OnBytes | None = None, arrival: Arrival | None = None) -> Path | None:
    """`resolve` of the draft model that the option speculation names; None where it names none.

    A word without a slash is only a directory, so that a way to draft with a typing error is no name on the hub.
    """
    if not (name := draft_model(speculation)):
        return None
    if "/" not in name and not Path(name).exists():
        raise ModelError(
            f"--speculation {name} is none of {', '.join(WAYS)}, and no directory; expected one or a model"
        )
    return resolve(name, on_bytes=on_bytes, arrival=arrival)


def name_of(model: str) -> str:
    """The name of a model without a given one: the last part of a directory, a file or a hub name."""
    if model_uri.is_fetched(model):
        name = model_uri.file_name(model)
        return gguf.model_name(next((name.removesuffix(end) for end in model_uri.ARCHIVES if name.endswith(end)), name))
    return gguf.model_name(Path(model).expanduser().resolve().name)


def with_user_name(message: str, model: str, environment: Mapping[str, str] = os.environ) -> str:
    """A message in which paths below the model's directory begin with the uri that the user gave to the service.

    model: as it was given to resolve(). Outside a pod of the operator there is no such uri, and the message stays.
    """
    uri = environment.get(names.ENV_MODEL_URI, "").rstrip("/")
    return re.sub(rf"(?<![\w./]){re.escape(model)}(?![\w-])", lambda _: uri, message) if uri and model else message


def _lone_file(folder: Path) -> Path:
    """A directory without a checkpoint means the one GGUF model that it holds. Raises ModelError for several."""
    if folder.is_file() or (folder / "config.json").exists():
        return folder
    files = (path for path in folder.glob(f"*{gguf.SUFFIX}") if path.is_file())
    found = sorted({Path(gguf.parts(str(path))[0]) for path in files})
    if len(found) > 1:
        raise ModelError(f"{folder} holds {len(found)} GGUF files; name one of them, for example {found[0]}")
    return found[0] if found else folder


def checkpoint_digest(model: Path) -> bytes:
    """Differs between checkpoints, fine-tunes of one included, without reading all of them.

    Of small files everything counts, of large ones their size and SAMPLES pieces of SAMPLE_BYTES. Raises OSError.
    """
    files = [path for path in sorted(model.iterdir()) if path.suffix in _OF_CHECKPOINT] if model.is_dir() else []
    digest = hashlib.sha256()
    for path in files or [Path(part) for part in gguf.parts(str(model))]:
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as stream:
            if size <= SAMPLES * SAMPLE_BYTES:
                digest.update(stream.read())
                continue
            for number in range(SAMPLES):
                stream.seek((size - SAMPLE_BYTES) * number // (SAMPLES - 1))
                digest.update(stream.read(SAMPLE_BYTES))
    return digest.digest()
