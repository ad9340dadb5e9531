"""Matrices of which two of four numbers are zero are read back where they stood."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from fakes import checkpoints, fp8_checkpoints, integer_checkpoints, sparse_checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape, merged
from fakes.integer_checkpoints import Style
from fakes.loaded_weights import loaded, worth
from fakes.oracle import Oracle
from fakes.sparse_checkpoints import Quantize
from kvasir_api.options import Quantization
from kvasir_runtime.errors import ModelError
from kvasir_runtime.kernels.quantized import QuantizedWeight
from kvasir_runtime.layers.rank import Rank
from kvasir_runtime.weights.loader import kinds

NAME = "model.layers.0.mlp.up_proj"


SHAPE = Shape(hidden_size=128, intermediate_size=96)
QUANTIZED: dict[str, Quantize] = {
    "fp8": partial(fp8_checkpoints.convert, style="channel"),
    "int8": partial(integer_checkpoints.convert, style=Style(method="int8", bits=8, group=0)),
    "int8-groups": partial(integer_checkpoints.convert, style=Style(method="int8", bits=8, group=32)),
}
EACH = pytest.mark.parametrize("quantize", [None, *QUANTIZED.values()], ids=["16-bits", *QUANTIZED])


@EACH
@pytest.mark.parametrize("whole_names", [False, True])
def test_answers_are_those_of_the_dense_weights(tmp_path: Path, whole_names: bool, quantize: Quantize | None) -> None:
    folder = checkpoints.write(tmp_path / "sparse", Shape())
    worth = sparse_checkpoints.convert(folder, quantize=quantize, whole_names=whole_names)
    dense = {name: one.float() for name, one in worth.items()}
    checkpoints.write_weights(checkpoints.write(tmp_path / "dense", Shape()), dense)
    assert bool(kinds(folder)) == (quantize is not None)
    stream = Stream(prompt=tuple(range(3, 40)))
    Hand(runner_of(folder, quantization="none")).run([stream], 8, chunk=7)
    assert Oracle(tmp_path / "dense").wrong_tokens(stream.prompt, stream.answer) == []


@EACH
@pytest.mark.parametrize("quantization", ["auto", "none"])
def test_numbers_are_those_of_float64(tmp_path: Path, quantize: Quantize | None, quantization: Quantization) -> None:
    """Decoded, products of numbers and scales are rounded once, to float32."""
    stored = sparse_checkpoints.convert(checkpoints.write(tmp_path, SHAPE), quantize=quantize)
    tensors, held = loaded(tmp_path, quantization), 0
    for name, want in merged(stored).items():
        weight = tensors[name]
        is_kept = isinstance(weight, QuantizedWeight)
        exact = worth(weight if is_kept else weight.double())
        torch.testing.assert_close(exact, want.double(), rtol=0.0 if quantize is None else 2**-23, atol=0.0)
        held += is_kept
        if name.startswith("layers.") and len(want.shape) == 2:
            assert ((exact.view(-1, 4) != 0).sum(1) <= 2).all()
    assert bool(held) == (quantize is not None and quantization == "auto")


@pytest.mark.parametrize("name", QUANTIZED)
def test_ranks_have_the_numbers_of_the_whole(tmp_path: Path, name: str) -> None:
    sparse_checkpoints.convert(
        checkpoints.write(tmp_path, replace(SHAPE, intermediate_size=256)), quantize=QUANTIZED[name]
    )
    whole, *ranks = (loaded(tmp_path, "auto", rank=rank) for rank in (Rank(), Rank(0, 2), Rank(1, 2)))
    downs = torch.cat([worth(one["layers.0.down.weight"]) for one in ranks], dim=1)
    assert torch.equal(downs, worth(whole["layers.0.down.weight"]))
    halves = [worth(one["layers.0.gate_up.weight"]).chunk(2) for one in ranks]
    both = torch.cat([half[part] for part in range(2) for half in halves])
    assert torch.equal(both, worth(whole["layers.0.gate_up.weight"]))


@pytest.mark.parametrize(
    ("part", "changed", "message"),
    [
        ("bitmask", None, "has no .*bitmask beside it"),
        ("bitmask", torch.zeros(96, 7, dtype=torch.uint8), r"has shape \[96, 7\], expected \[96, 8\]"),
        ("bitmask", torch.zeros(96, 8, dtype=torch.uint8), "does not keep half of the columns"),
        ("compressed", torch.zeros(96, 32, dtype=torch.uint8), "type uint8, expected float16"),
        ("compressed", torch.zeros(96, 32, dtype=torch.float8_e4m3fn), "no .*up_proj.weight_scale is beside it"),
        ("compressed", torch.zeros(96, 32, dtype=torch.int8), "type int8 without scales beside it"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, part: str, changed: Tensor | None, message: str) -> None:
    sparse_checkpoints.convert(checkpoints.write(tmp_path, Shape(hidden_size=64, intermediate_size=96)))
    weights = load_file(tmp_path / "model.safetensors") | {f"{NAME}.{part}": changed}
    save_file({name: one for name, one in weights.items() if one is not None}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        runner_of(tmp_path)
