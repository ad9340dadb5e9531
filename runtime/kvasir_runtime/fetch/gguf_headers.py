"""What the headers of GGUF files at a source state, without their weights. Called for forecasts."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError, ModelUnavailableError
from kvasir_runtime.fetch.model_files import BrokenTransferError, RemoteFile

_FIRST_BYTES: Final = 1 << 14
_MOST_BYTES: Final = 64 << 20
"""Of a header: vocabularies of 260,000 tokens take 12 MB."""


def config(files: Sequence[RemoteFile]) -> dict[str, Any]:
    """The metadata of a model in the form of config.json, in which rotary factors are zeros: they lie among weights.

    files: all parts of it. Raises ValueError with one line for what is no such model, ModelUnavailableError.
    """
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / file.name.rpartition("/")[2] for file in files]
        try:
            for file, copy in zip(files, copies, strict=True):
                _fill(file, copy)
            return gguf.config_with_bits(gguf.read(copies[0]))
        except ModelError as error:
            raise ValueError(str(error).replace(f"{folder}/", "")) from error
        except BrokenTransferError as error:
            raise ModelUnavailableError(f"the header of {files[0].name} cannot be read: {error.told()}") from error
        except OSError as error:  # no room, or no file may be so large
            raise ValueError(f"the header of {files[0].name} cannot be kept: {error.strerror}") from error


def header(file: RemoteFile) -> bytes:
    """The beginning of a file, until all that stands before its tensors is there. Raises as `config`, and OSError."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "header"
        _copy_header(file, copy)
        return copy.read_bytes()


def _fill(file: RemoteFile, copy: Path) -> None:
    """Write the beginning of a file until its header is there; the rest of the copy is a hole."""
    _copy_header(file, copy)
    with copy.open("r+b") as stream:
        stream.truncate(file.size)


def _copy_header(file: RemoteFile, copy: Path) -> None:
    enough = _FIRST_BYTES
    with copy.open("wb") as stream, file.opened(0) as transfer:
        for piece in transfer.pieces:
            stream.write(piece)
            if stream.tell() < enough:
                continue
            stream.flush()
            if gguf.has_header(copy):
                break
            if stream.tell() >= _MOST_BYTES:
                raise ModelError(f"{copy} has a header of more than {_MOST_BYTES:,} bytes")
            enough *= 2
