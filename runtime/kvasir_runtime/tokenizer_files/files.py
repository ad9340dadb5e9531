"""Which file of a checkpoint holds its tokenizer, and files of JSON. Imports no library of tokenizers."""

import json
from pathlib import Path
from typing import Any, Final

from kvasir_runtime.errors import ModelError

MAX_FILE_BYTES: Final = 256 << 20
FILES: Final = ("tokenizer.json", "tekken.json", "tokenizer.model")
"""In the order in which they are looked for."""


def find(folder: Path) -> Path:
    """The file with the tokenizer of a checkpoint. Raises ModelError where there is none."""
    for name in FILES:
        if (folder / name).exists():
            return folder / name
    raise ModelError(f"{folder} has no tokenizer: expected one of {', '.join(FILES)}")


def check_size(path: Path) -> None:
    """Raises ModelError for what is no file, or too large to be one of a tokenizer."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    if not path.is_file() or size > MAX_FILE_BYTES:
        raise ModelError(f"{path} is not a file of at most {MAX_FILE_BYTES} bytes")


def read_json(path: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    """A JSON object of a directory, with Infinity and NaN too; {} where it may be missing. Raises ModelError."""
    if missing_ok and not path.exists():
        return {}
    check_size(path)
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {' '.join(str(error).split())[:300]}") from error
    if not isinstance(document, dict):
        raise ModelError(f"{path} is not a JSON object")
    return document
