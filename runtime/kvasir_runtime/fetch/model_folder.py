"""Where in a folder that was fetched or mounted the checkpoint is, and which files of it are to be there."""

import json
from pathlib import Path
from typing import Final

from kvasir_runtime import gguf

INDEX: Final = "model.safetensors.index.json"
_ONE_FILE: Final = "model.safetensors"
_OTHER_WEIGHTS: Final = (".bin", ".pt", ".pth", ".gguf")


def model_folder(folder: Path) -> Path:
    """The directory with the checkpoint: the folder, or the one within it that has a config.json."""
    if (folder / "config.json").is_file():
        return folder
    found = sorted(folder.rglob("config.json"), key=lambda path: len(path.parts))
    return found[0].parent if found else folder


def shards(folder: Path) -> set[str]:
    """The files with weights of a checkpoint by its index, the one file without one; none by an index that is broken,
    which is refused when it is loaded."""
    if not (folder / INDEX).is_file():
        return {_ONE_FILE}
    try:
        return set(json.loads((folder / INDEX).read_bytes())["weight_map"].values())
    except (ValueError, LookupError, TypeError, AttributeError):
        return set()


def gguf_models(folder: Path) -> list[str]:
    """The first files of the GGUF models in a folder that has nothing of a checkpoint."""
    if (folder / "config.json").is_file() or any(folder.glob("*.safetensors")):
        return []
    found = (path.name for path in folder.iterdir() if path.suffix.lower() == gguf.SUFFIX and path.is_file())
    return sorted({gguf.parts(name)[0] for name in found})


def missing(folder: Path) -> str:
    """The first file that a checkpoint needs and that is not in its folder, empty where these are there. Weights of
    another kind than safetensors are left to who loads."""
    if not (folder / "config.json").is_file():
        return "config.json"
    if not (folder / INDEX).is_file() and any(path.suffix in _OTHER_WEIGHTS for path in folder.iterdir()):
        return ""
    return next((name for name in sorted(map(str, shards(folder))) if not (folder / name).is_file()), "")
