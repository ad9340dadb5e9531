"""Where a model is: a directory or a GGUF file as it is, or a hub name brought into huggingface_hub's cache.

Called by both processes of a pod (the API needs the tokenizer, the engine the weights), so it imports no torch. The
files themselves are read by `models` and `weights`.
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

from kvasir_api import names
from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError

# Weights as safetensors only: a pickled checkpoint is never fetched, let alone opened.
HUB_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "tokenizer.model*")
# The same weights once more, as their authors' own code has them, and those of other runtimes in directories.
_HUB_UNUSED = ("consolidated*.safetensors", "*/*.safetensors")
_OF_CHECKPOINT = frozenset({".safetensors", ".json", ".model"})
SAMPLES = 32
SAMPLE_BYTES = 64 * 1024
_HUB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")


def resolve(model: str, revision: str = "") -> Path:
    """The directory that holds the model's files, or the first GGUF file of it, after a download if need be.

    model: a directory, a file, a hub name such as `Qwen/Qwen3-0.6B`, or `ORG/NAME/FILE.gguf` on the hub. revision: a
    branch, tag or commit on the hub; its main branch without one. HF_HOME, HF_TOKEN and HF_HUB_OFFLINE are honoured.
    Raises ModelError with one line when there is no such directory, file, repository or revision, or it may not be
    read.
    """
    folder = Path(os.path.expanduser(model))  # noqa: PTH111 -- Path's own raises where the user is unknown
    if model and revision and folder.exists():
        raise ModelError(f"--revision {revision} is for models on the hub; {model} is on this machine")
    if model and folder.is_dir():
        return _lone_file(folder)
    if model and gguf.is_gguf(folder):
        return folder
    if model and folder.exists():
        raise ModelError(f"model {model} is a file; expected a .gguf, or the directory of a Hugging Face checkpoint")
    if is_hub_file(model):
        return _download(*model.rsplit("/", 1), revision=revision)
    if not is_hub_name(model):
        raise ModelError(f"model directory {model} does not exist")
    return _download(model, revision=revision)


def name_of(model: str) -> str:
    """The name of a model without a given one: the last part of a directory, a file or a hub name."""
    return gguf.model_name(Path(model).expanduser().resolve().name)


def with_user_name(message: str, model: str, environment: Mapping[str, str] = os.environ) -> str:
    """A message in which paths below the model's directory begin with the uri that the user gave to the service.

    model: as it was given to resolve(). Outside a pod of the operator there is no such uri, and the message stays.
    """
    uri = environment.get(names.ENV_MODEL_URI, "").rstrip("/")
    return re.sub(rf"(?<![\w./]){re.escape(model)}(?![\w-])", lambda _: uri, message) if uri and model else message


def _lone_file(folder: Path) -> Path:
    """A directory without a checkpoint means the one GGUF model that it holds. Raises ModelError for several."""
    if (folder / "config.json").exists():
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


def is_hub_name(model: str) -> bool:
    """Whether a text can be the name of a repository, and does not look like a path."""
    looks_like_path = model.startswith((".", "/", "~")) or model.count("/") > 1
    return not looks_like_path and _HUB_NAME.fullmatch(model) is not None


def is_hub_file(model: str) -> bool:
    """Whether a text can be a GGUF file of a repository: ORG/NAME/FILE.gguf, and does not look like a path."""
    repository, _, file = model.rpartition("/")
    named = repository.count("/") == 1 and is_hub_name(repository)
    return named and file.lower().endswith(gguf.SUFFIX) and _HUB_NAME.fullmatch(file) is not None


def _download(name: str, file: str = "", *, revision: str = "") -> Path:
    """A repository, or one model of it in a file or several."""
    from huggingface_hub import errors, hf_hub_download, snapshot_download  # 0.3 s that a directory never needs

    try:
        if file:
            first, *_ = [Path(hf_hub_download(name, part, revision=revision or None)) for part in gguf.parts(file)]
            return first
        return Path(
            snapshot_download(
                name, revision=revision or None, allow_patterns=[*HUB_PATTERNS], ignore_patterns=[*_HUB_UNUSED]
            )
        )
    except errors.GatedRepoError as error:
        raise ModelError(f"model {name} is gated: accept its terms on the hub and set HF_TOKEN") from error
    except errors.EntryNotFoundError as error:
        if isinstance(error, errors.LocalEntryNotFoundError):
            # The hub's library raises this for any unexpected response, too.
            answered = isinstance(error.__cause__, errors.HfHubHTTPError)
            raise ModelError(_unfetched(name, error.__cause__) if answered else _unreachable(name)) from error
        raise ModelError(f"repository {name} on the hub has no {file}") from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"model {name} has no revision {revision} on the hub") from error
    except errors.RepositoryNotFoundError as error:
        reason = "is neither a directory nor a public repository on the hub; a private one needs HF_TOKEN"
        raise ModelError(f"model {name} {reason}") from error
    except errors.OfflineModeIsEnabled as error:
        raise ModelError(_unreachable(name)) from error
    except Exception as error:  # whatever the library's HTTP client raises: cut off, led in circles, too slow
        raise ModelError(_unfetched(name, error)) from error


def _unfetched(name: str, error: BaseException | None) -> str:
    lines = str(error).splitlines() or [type(error).__name__]
    return f"model {name} could not be fetched from the hub: {lines[0]}"


def _unreachable(name: str) -> str:
    return (
        f"model {name} is not a directory, is not in the local cache,"
        " and the hub cannot be reached (or HF_HUB_OFFLINE is set)"
    )
