"""A model in several GGUF files is the model that they were split from; a missing or foreign part is named."""

import shutil
from pathlib import Path

import pytest

from fakes import checkpoints, ggufs
from fakes.by_hand import Hand, Stream, runner_of
from kvasir_runtime import gguf, source
from kvasir_runtime.errors import ModelError
from kvasir_runtime.frontend import tokenizer
from kvasir_runtime.gguf import split_files

SMALL = checkpoints.Shape(hidden_size=32, num_layers=1, head_dim=8, intermediate_size=32, vocab_size=300)


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    path = ggufs.write(checkpoints.write(tmp_path / "model", SMALL), tmp_path / "gguf/model.gguf", kind="Q8_0")
    return ggufs.split(path, 3)


@pytest.mark.parametrize("number", [0, 2])
def test_any_part_names_the_whole(tmp_path: Path, parts: list[Path], number: int) -> None:
    whole = gguf.read(ggufs.write(tmp_path / "model", tmp_path / "whole.gguf", kind="Q8_0"))
    found = gguf.read(parts[number])
    assert found.path == parts[0]
    assert found.tensors.keys() == whole.tensors.keys()
    assert {entry.path for entry in found.tensors.values()} == set(parts)
    assert gguf.config(found) == gguf.config(whole)
    assert tokenizer.load(parts[number]).encode("the plan", special=True, limit=99)


def test_the_answer_is_that_of_the_one_file(tmp_path: Path, parts: list[Path]) -> None:
    answers = []
    for path in (parts[0], ggufs.write(tmp_path / "model", tmp_path / "whole.gguf", kind="Q8_0")):
        stream = Stream(prompt=tuple(range(3, 40)))
        Hand(runner_of(path)).run([stream], 8)
        answers.append(stream.answer)
    assert answers[0] == answers[1]


def test_a_directory_of_parts_is_one_model(tmp_path: Path, parts: list[Path]) -> None:
    assert source.resolve(str(parts[0].parent)) == parts[0]
    assert source.name_of(str(parts[0])) == "model"
    shutil.copy(parts[0], parts[0].with_name("other.gguf"))
    with pytest.raises(ModelError, match="holds 2 GGUF"):
        source.resolve(str(parts[0].parent))


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("a/m-00002-of-00003.gguf", [f"a/m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]),
        ("m.gguf", ["m.gguf"]),
        ("m-00004-of-00003.gguf", ["m-00004-of-00003.gguf"]),
        ("m-1-of-2.gguf", ["m-1-of-2.gguf"]),
    ],
)
def test_names_of_parts(name: str, want: list[str]) -> None:
    assert list(split_files.parts(name)) == want


def test_a_part_that_is_missing_or_another_is_named(parts: list[Path]) -> None:
    kept = parts[1].read_bytes()
    parts[1].unlink()
    with pytest.raises(ModelError, match=r"model-00002-of-00003\.gguf does not exist; all 3 parts"):
        gguf.read(parts[0])
    shutil.copy(parts[2], parts[1])
    with pytest.raises(ModelError, match=r"00002-of-00003\.gguf is part 3 of 3, its name says 2 of 3"):
        gguf.read(parts[0])
    parts[1].write_bytes(kept[:100])
    with pytest.raises(ModelError, match=r"00002-of-00003\.gguf"):
        gguf.read(parts[0])


def test_a_part_by_another_name_is_refused(parts: list[Path]) -> None:
    alone = parts[1].rename(parts[1].with_name("alone.gguf"))
    with pytest.raises(ModelError, match="is part 2 of 3, which its name does not say"):
        gguf.read(alone)


def test_a_file_with_a_vocabulary_alone_tokenizes_and_is_not_served(tmp_path: Path) -> None:
    source_folder = checkpoints.write(tmp_path / "model", SMALL)
    path = ggufs.write_vocabulary(source_folder, tmp_path / "vocabulary.gguf")
    found = tokenizer.load(path)
    assert found.encode("the plan", special=False, limit=99) == tokenizer.load(source_folder).encode(
        "the plan", special=False, limit=99
    )
    assert found.vocab_size == 300
    with pytest.raises(ModelError, match="holds a vocabulary alone and no weights"):
        gguf.config(gguf.read(path))
