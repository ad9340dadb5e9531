"""A vocabulary of 320 tokens, some of them special."""

from pathlib import Path

import pytest

from fakes import checkpoints
from kvasir_runtime.guide import vocabulary
from kvasir_runtime.guide.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    checkpoints.write_tokenizer(path)
    return path


@pytest.fixture(scope="session")
def words(folder: Path) -> Vocabulary:
    return vocabulary.load(folder, 330, (0,))
