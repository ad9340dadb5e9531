"""What each stage holds at a start, beside what the forecast promises of it."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import checkpoints
from kvasir_api import forecast, inspection, layouts
from kvasir_api.options import ServeOptions
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.models import registry
from kvasir_runtime.runner.startup import model_parts

BLOCK = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


def part(folder: Path, stages: int, quantization: str) -> tuple[model_parts.ModelPart, ServeOptions]:
    options = ServeOptions.model_validate(
        {
            "model": str(folder),
            "device": "cpu",
            "dtype": "float32",
            "quantization": quantization,
            "pipeline_parallel_size": stages,
            "block_size": BLOCK,
        }
    )
    config, family = registry.read(folder)
    ops = replace(REFERENCE, collectives=SimpleNamespace(rank=0, ranks=stages))
    return model_parts.part_of(options, folder, family, config, ops, 4, cuda=False), options


@settings(max_examples=25, deadline=None)
@given(
    layers=st.integers(1, 7),
    stages=st.integers(1, 7),
    vocabulary=st.sampled_from([320, 1024, 4096]),
    tied=st.booleans(),
    quantization=st.sampled_from(["none", "int8"]),
    spare=st.integers(0, 10**6),
)
def test_a_start_has_the_cache_that_the_forecast_promises(
    folder: Path, layers: int, stages: int, vocabulary: int, tied: bool, quantization: str, spare: int
) -> None:
    stages = min(stages, layers)
    model = checkpoints.Shape(num_layers=layers, vocab_size=vocabulary, tied=tied)
    checkpoints.write(folder, model)
    own, options = part(folder, stages, quantization)
    shape = inspection.held_on(forecast.shape(json.loads((folder / "config.json").read_text())), "cpu")
    one = forecast.fit(
        shape,
        memory_bytes=1 << 40,
        memory_fraction=1,
        dtype="float32",
        max_model_len=0,
        max_batch_tokens=512,
        quantization=quantization,
    )
    room = max(own.stage_bytes) + spare
    wanted = layouts.Wanted(
        room_bytes=room,
        one=one,
        beside_bytes=layouts.beside_bytes(shape, "float32", quantization),
        max_sequences=8,
        longest=64,
    )
    promised = layouts.kv_tokens(shape, wanted, layouts.Layout(tensor=1, stages=stages))
    taken = spare // own.token_bytes(options, torch.float32)
    assert promised <= taken
    assert promised >= taken * 0.9 - 64  # and no cache is forecast away
