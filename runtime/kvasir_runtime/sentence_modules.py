"""What sentence-transformers does to a text, as modules.json of a checkpoint names it. Imports no torch.

The API process reads how embeddings are pooled and scaled, the engine which layers lie behind pooling.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from kvasir_runtime.errors import ModelError

MAX_FILE_BYTES: Final = 1 << 20
SERVED: Final = ("Transformer", "Pooling", "Dense", "Normalize")
"""In the order in which they are; Dense may be there several times, and all but the first may be missing."""
_T = TypeVar("_T")


class Module(msgspec.Struct):
    """type: name of a class, with its packages. path: of its folder in the checkpoint."""

    type: str
    path: str = ""

    @property
    def name(self) -> str:
        """Of the class alone."""
        return self.type.rpartition(".")[2]


def read(model: Path) -> list[Module]:
    """In order; [] without the file. Raises ModelError."""
    path = model / "modules.json"
    modules = decoded(path, list[Module]) or []
    for module in modules:
        if not module.path.isprintable() or module.path.startswith("/") or ".." in module.path.split("/"):
            raise ModelError(f"{path}: path {module.path!r:.100} leads out of the checkpoint")
    return modules


def refusal(modules: Sequence[Module]) -> str:
    """Why a checkpoint's embeddings cannot be computed, as a sentence; empty where they can, as without modules."""
    names = [module.name for module in modules]
    if unknown := sorted(set(names) - {*SERVED}):
        return f"The checkpoint's embeddings go through a module {unknown[0]}, which is not supported here."
    if names != sorted(names, key=SERVED.index):
        return f"The checkpoint's modules are {', '.join(names)}; only the order {', '.join(SERVED)} is supported."
    if "Dense" in names and "Pooling" not in names:
        return "The checkpoint makes a vector of each token (Dense without Pooling), which is not supported here."
    return ""


def decoded(path: Path, kind: type[_T]) -> _T | None:
    """A JSON file as a typed value, None where there is none. Raises ModelError."""
    if not path.is_file():
        return None
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ModelError(f"{path} has more than {MAX_FILE_BYTES} bytes")
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: {error}") from error
