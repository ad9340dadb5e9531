"""Matrices of which two of four numbers are zero are read back where they stood."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fakes import checkpoints, sparse_checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape
from fakes.oracle import Oracle
from kvasir_runtime.errors import ModelError
from kvasir_runtime.weights.loader import kinds

NAME = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize("whole_names", [False, True])
def test_answers_are_those_of_the_dense_weights(tmp_path: Path, whole_names: bool) -> None:
    folder = checkpoints.write(tmp_path / "sparse", Shape())
    worth = sparse_checkpoints.convert(folder, whole_names=whole_names)
    checkpoints.write_weights(checkpoints.write(tmp_path / "dense", Shape()), worth)
    assert kinds(folder) == {}
    stream = Stream(prompt=tuple(range(3, 40)))
    Hand(runner_of(folder)).run([stream], 8, chunk=7)
    assert Oracle(tmp_path / "dense").wrong_tokens(stream.prompt, stream.answer) == []


@pytest.mark.parametrize(
    ("part", "changed", "message"),
    [
        ("bitmask", None, "has no .*bitmask beside it"),
        ("bitmask", torch.zeros(96, 7, dtype=torch.uint8), r"has shape \[96, 7\], expected \[96, 8\]"),
        ("bitmask", torch.zeros(96, 8, dtype=torch.uint8), "does not keep half of the columns"),
        ("compressed", torch.zeros(96, 32, dtype=torch.int8), "type int8, expected float16"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, part: str, changed: Tensor | None, message: str) -> None:
    sparse_checkpoints.convert(checkpoints.write(tmp_path, Shape(hidden_size=64, intermediate_size=96)))
    weights = load_file(tmp_path / "model.safetensors") | {f"{NAME}.{part}": changed}
    save_file({name: one for name, one in weights.items() if one is not None}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        runner_of(tmp_path)
