"""What a forecast counts of a GGUF file is what the runtime holds of it, and never less."""

import json
from pathlib import Path

import pytest
import torch

from fakes import checkpoints, ggufs
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_api.stored_bits import Compute
from kvasir_runtime import gguf
from kvasir_runtime.commands.fit_report import fit_report
from kvasir_runtime.gguf import stored_size
from kvasir_runtime.kernels.quantized import QuantFormat
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.weights import quant_formats
from kvasir_runtime.weights.gguf_dequant import KEPT
from kvasir_runtime.weights.quant_formats import DeviceFormats

LARGE = {"hidden_size": 256, "num_layers": 2, "head_dim": 64, "intermediate_size": 512, "vocab_size": 512}


def written(folder: Path, *, tied: bool, **kinds: object) -> Path:
    shape = checkpoints.Shape(family="qwen3", tied=tied, dtype=torch.float32, max_position_embeddings=512, **LARGE)
    return ggufs.write(checkpoints.write(folder / "source", shape), folder / "m.gguf", **kinds)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    "kinds",
    [
        {"kind": "Q8_0"},
        {"kind": "Q4_0"},
        {"kind": "Q4_K"},
        {"kind": "Q6_K"},
        {"kind": "Q4_K", "kinds": {"ffn_down": "Q6_K", "attn_v": "Q6_K", "output.weight": "Q6_K"}},
        {"kind": "Q8_0", "kinds": {"token_embd": "F16", "ffn_up": "F16"}},
    ],
    ids=["Q8_0", "Q4_0", "Q4_K", "Q6_K", "mixed", "in-part"],
)
def test_the_forecast_of_a_file_holds(tmp_path: Path, tied: bool, kinds: dict[str, object]) -> None:
    path = written(tmp_path, tied=tied, **kinds)
    planned = fit_report(
        "m",
        gguf.config_with_bits(gguf.read(path)),
        memory_bytes=2**32,
        device="cpu",
        options=RuntimeOptions(dtype="bfloat16"),
    )
    given = ServeOptions(model=str(path), device="cpu", kv_cache_tokens=1024, dtype="bfloat16")
    held = build(given, lambda _: None).facts.weights_bytes
    assert held <= planned.fit.weights_bytes * 1.001
    assert planned.fit.weights_bytes == pytest.approx(held, rel=0.1)


def test_a_file_of_plain_numbers_is_counted_as_it_is(tmp_path: Path) -> None:
    path = written(tmp_path, tied=True, kind="F16")
    assert json.dumps(gguf.config_with_bits(gguf.read(path))) == json.dumps(gguf.config(gguf.read(path)))


@pytest.mark.parametrize(("device", "formats"), [("cuda", quant_formats.CARDS), ("cpu", quant_formats.PROCESSORS)])
def test_the_sizes_are_those_of_the_formats(device: Compute, formats: DeviceFormats) -> None:
    eight = formats.num_bytes(QuantFormat(bits=8), 1, 32) * 16 // 32
    held = {
        name: eight if format_.codebook and device == "cuda" else formats.num_bytes(format_, 1, 32) * 16 // 32
        for name, format_ in KEPT.items()
    }
    kinds = {**stored_size._SIXTEENTHS, **stored_size._BY_DEVICE[device]}
    assert {name: kinds.get(name, eight) for name in held} == held
    assert eight == stored_size._EIGHT_BITS
