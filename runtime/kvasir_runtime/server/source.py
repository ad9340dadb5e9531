"""Finds the model: a directory, or a name on the hub that is downloaded into the hub client's own cache.

Called once at the start, in a thread. HF_TOKEN and HF_HUB_OFFLINE are honoured by the hub's client. Raises DamagedModel
with one line for a person.
"""

import re
from pathlib import Path
from typing import Final

from kvasir_runtime.server.tokenizer import DamagedModel, one_line

HUB_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[\w.-]{1,96})?")
FILES: Final = ("*.json", "*.safetensors", "*.jinja")
"""Never *.bin or *.py: nothing that could be code is even downloaded."""


def default_name(model: str) -> str:
    """The last part of MODEL, as clients will call it."""
    return Path(model).resolve().name if is_path(model) else model.rpartition("/")[2]


def is_path(model: str) -> bool:
    """Whether MODEL names something in the file system rather than on the hub."""
    return model.startswith(("/", ".", "~")) or Path(model).exists() or HUB_NAME.fullmatch(model) is None


def locate(model: str) -> Path:
    """The directory with the model's files."""
    if is_path(model):
        folder = Path(model).expanduser()
        if not folder.is_dir():
            raise DamagedModel(f"{model} is not a directory" if folder.exists() else f"{model} does not exist")
        return folder.resolve()
    return _download(model)


def _download(name: str) -> Path:
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(FILES)))
    except Exception as error:  # the hub's client has dozens of errors; each becomes one line
        raise DamagedModel(f"cannot get {name} from the hub: {one_line(error)}") from error
