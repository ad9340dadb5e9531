"""Which ids end an answer: those that any file of a checkpoint names as the end, each once."""

import json
from pathlib import Path
from typing import Any

import pytest

from fakes import checkpoints, ggufs
from fakes.checkpoints import Shape
from kvasir_runtime.errors import ModelError
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.end_tokens import read_eos_token_ids

IM_END = checkpoints.SPECIAL_TOKENS.index("<|im_end|>")


def folder_with(tmp_path: Path, eos: Any, **files: Any) -> Path:
    """A directory without weights: config.json that names eos, and files by their names without .json."""
    config = checkpoints.config_json(Shape()) | {"eos_token_id": eos}
    for name, content in ({"config": config} | files).items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return tmp_path


def ids_of(folder: Path) -> tuple[int, ...]:
    return read_eos_token_ids(folder, read_config(folder))


@pytest.mark.parametrize(
    ("generation", "config", "wanted"),
    [(None, 7, (7,)), ({"eos_token_id": [3, 7]}, 7, (3, 7)), ({}, [5, 6], (5, 6)), ({"eos_token_id": 10**6}, None, ())],
)
def test_ids_of_both_configs(tmp_path: Path, generation: Any, config: Any, wanted: tuple[int, ...]) -> None:
    assert ids_of(folder_with(tmp_path, config, **({"generation_config": generation} if generation else {}))) == wanted


def test_the_tokenizers_end_token_ends_an_answer_of_a_chatml_fine_tune(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path)
    assert ids_of(folder) == (checkpoints.EOS_TOKEN_ID,)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"eos_token": "<|im_end|>"}))
    assert ids_of(folder) == (checkpoints.EOS_TOKEN_ID, IM_END)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"eos_token": "</e>", "added_tokens_decoder": {"9": {"content": "</e>"}}}},
        {"tokenizer_config": {"eos_token": {"content": "</e>"}, "added_tokens_decoder": {"9": {"content": "</e>"}}}},
        {"tokenizer_config": {"eos_token": "</e>"}, "tokenizer": {"added_tokens": [{"id": 9, "content": "</e>"}]}},
        {"special_tokens_map": {"eos_token": "</e>"}, "tokenizer": {"added_tokens": [{"id": 9, "content": "</e>"}]}},
        {"tokenizer_config": {"eos_token": "</e>"}, "added_tokens": {"</e>": 9}},
    ],
)
def test_places_where_checkpoints_keep_the_id_of_the_end_token(tmp_path: Path, files: dict[str, Any]) -> None:
    assert ids_of(folder_with(tmp_path, None, **files)) == (9,)


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {}},
        {"tokenizer_config": {"eos_token": None}},
        {"tokenizer_config": {"eos_token": "</e>"}},
        {"tokenizer_config": {"eos_token": "</e>", "added_tokens_decoder": {"999999": {"content": "</e>"}}}},
    ],
)
def test_an_end_token_without_an_id_of_the_model_is_left_out(tmp_path: Path, files: dict[str, Any]) -> None:
    assert ids_of(folder_with(tmp_path, 5, **files)) == (5,)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, 5)
    (folder / "tokenizer_config.json").write_text('{"eos_token": 5}')
    with pytest.raises(ModelError, match=r"tokenizer_config\.json"):
        ids_of(folder)


def test_a_gguf_file_names_its_own(tmp_path: Path) -> None:
    path = ggufs.write(checkpoints.write(tmp_path / "model"), tmp_path / "model.gguf")
    assert ids_of(path) == (checkpoints.EOS_TOKEN_ID, IM_END)


def test_a_large_tokenizer_file_is_read(tmp_path: Path) -> None:
    tokens = {"added_tokens": [{"id": 9, "content": "</e>"}], "model": {"vocab": "x" * (17 << 20)}}
    assert ids_of(folder_with(tmp_path, None, tokenizer_config={"eos_token": "</e>"}, tokenizer=tokens)) == (9,)
