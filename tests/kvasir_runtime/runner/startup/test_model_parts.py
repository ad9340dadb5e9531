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
from kvasir_api import forecast, inspection, layouts, rank_forecast
from kvasir_api.options import ServeOptions
from kvasir_runtime.kernels.reference import REFERENCE
from kvasir_runtime.models import registry
from kvasir_runtime.runner.startup import model_parts

BLOCK = 16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stages")


def part(
    folder: Path, stages: int, quantization: str, rank_bytes: int = 1 << 40, speculation: str = "off"
) -> tuple[model_parts.ModelPart, ServeOptions]:
    """rank_bytes: memory of a rank."""
    options = ServeOptions.model_validate(
        {
            "model": str(folder),
            "device": "cpu",
            "dtype": "float32",
            "quantization": quantization,
            "speculation": speculation,
            "pipeline_parallel_size": stages,
            "block_size": BLOCK,
            "max_model_len": 64,
        }
    )
    config, family = registry.read(folder)
    ops = replace(REFERENCE, collectives=SimpleNamespace(rank=0, ranks=stages))
    sizes = forecast.shape(json.loads((folder / "config.json").read_text()))
    room = model_parts.stage_room(options, sizes, torch.float32, rank_bytes)
    return model_parts.part_of(options, folder, family, config, ops, 4, room, cuda=False), options


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(1, 9),
    stages=st.integers(1, 7),
    vocabulary=st.sampled_from([320, 1024, 4096]),
    tied=st.booleans(),
    family=st.sampled_from(["qwen3", "qwen3_moe", "gemma3_text", "qwen3_next", "deepseek_v2"]),
    quantization=st.sampled_from(["none", "int8"]),
    spare=st.integers(-(10**6), 3 * 10**6),
)
def test_a_start_cuts_as_forecast_and_has_the_cache_that_was_promised(
    folder: Path, layers: int, stages: int, vocabulary: int, tied: bool, family: str, quantization: str, spare: int
) -> None:
    """spare: beside the weights of the heaviest stage of the cut by bytes, of a rank's memory."""
    stages = min(stages, layers)
    model = checkpoints.Shape(
        family=family,
        num_layers=layers,
        vocab_size=vocabulary,
        tied=family == "gemma3_text" or (tied and family == "qwen3"),
        shared_size=64,
    )
    checkpoints.write(folder, model)
    lightest, options = part(folder, stages, quantization, 1)
    shape = inspection.held_on(forecast.shape(json.loads((folder / "config.json").read_text())), "cpu")
    process_bytes = rank_forecast.of_one(shape, options, "float32", 0)[1]
    rank_bytes = -(-(max(lightest.stage_bytes) + spare - process_bytes) * 10 // 9)
    one, room = rank_forecast.of_one(shape, options, "float32", rank_bytes)
    wanted = rank_forecast.wanted(shape, options, "float32", rank_bytes)
    layout = layouts.Layout(tensor=1, stages=stages)
    own, _ = part(folder, stages, quantization, rank_bytes)
    cuts = [spec.stage or range(layers) for spec in own.stages]
    assert cuts == list(layouts._cut(shape, wanted, layout))
    promised = layouts.kv_tokens(shape, wanted, layout)
    token_bytes = own.token_bytes(options, torch.float32)
    taken = max((room - max(own.stage_bytes)) // token_bytes, 0)
    norm_bytes = 4 * model.hidden_size  # of the last stage, which the forecast counts at the first
    assert promised <= taken + -(-norm_bytes // token_bytes)
    assert promised >= taken * 0.9 - 64  # and no cache is forecast away
    by_bytes = (room - max(lightest.stage_bytes)) // lightest.token_bytes(options, torch.float32)
    assert taken >= one.sequence_tokens or by_bytes < one.sequence_tokens, "what fits is never lost"


def test_the_head_counts_and_the_table_does_not_where_memory_allows(folder: Path) -> None:
    """Both take as much as 2.1 of the 16 layers each. Stages read 7 + 2.1 and 9; by bytes they hold 6 + 4.2 and 10."""
    model = checkpoints.Shape(num_layers=16, vocab_size=1024)
    checkpoints.write(folder, model)

    def lengths(rank_bytes: int, speculation: str = "off") -> list[int]:
        return [len(spec.stage or ()) for spec in part(folder, 2, "none", rank_bytes, speculation)[0].stages]

    assert lengths(1 << 40) == [7, 9]
    assert lengths(1) == [6, 10]
    assert lengths(1 << 40, "org/draft") == [6, 10], "rank 0 has another model beside"
