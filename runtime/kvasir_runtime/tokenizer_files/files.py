"""Which file of a checkpoint holds its tokenizer. Imports no library of tokenizers."""

from pathlib import Path
from typing import Final

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
