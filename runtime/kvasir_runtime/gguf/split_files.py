"""Models in several GGUF files, as llama.cpp's gguf-split writes them: NAME-00001-of-00003.gguf and so on.

The first part holds the metadata; every part holds some tensors. A single file is a model of one part.
"""

import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.gguf import reader
from kvasir_runtime.gguf.reader import GgufFile, TensorEntry

_PART: Final = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.IGNORECASE)


def parts(name: str) -> tuple[str, ...]:
    """Names of all files of a model, by the name or path of one of them, in order."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match[2]) <= int(match[3]):
        return (name,)
    return tuple(f"{match[1]}-{number:05d}-of-{match[3]}{match[4]}" for number in range(1, int(match[3]) + 1))


def model_name(name: str) -> str:
    """A file's name without the ending, and without the number of a part."""
    match = _PART.fullmatch(name)
    return match[1] if match else name.removesuffix(reader.SUFFIX)


def read(path: Path) -> GgufFile:
    """Metadata of a model, and the tensors of all of its files. path: of any of them.

    Raises ModelError that names the file which is missing, damaged or part of something else.
    """
    names = parts(str(path))
    files = [_part(Path(name), index, len(names)) for index, name in enumerate(names)]
    first = files[0]
    tensors: dict[str, TensorEntry] = {}
    for file in files:
        twice = sorted(tensors.keys() & file.tensors.keys())
        if twice:
            raise ModelError(f"{file.path}: tensor {twice[0]} is in another part too")
        tensors.update(file.tensors)
    expected = first.integer("split.tensors.count", len(tensors))
    if len(tensors) != expected:
        raise ModelError(f"{first.path}: its {len(files)} parts hold {len(tensors)} tensors, expected {expected}")
    return replace(first, tensors=tensors)


def _part(path: Path, index: int, count: int) -> GgufFile:
    if not path.is_file():
        raise ModelError(f"{path} does not exist; all {count} parts of the model must be in one directory")
    file = reader.read(path)
    number, of = file.integer("split.no", 0), file.integer("split.count", 1)
    if count == 1 and of > 1:
        raise ModelError(
            f"{path} is part {number + 1} of {of}, which its name does not say; expected NAME-00001-of-{of:05d}.gguf"
        )
    if count > 1 and (number, of) != (index, count):
        raise ModelError(f"{path} is part {number + 1} of {of}, its name says {index + 1} of {count}")
    return file
