"""A model whose layers are on the host answers as one whose layers are on the device, launched or replayed."""

from functools import cache
from pathlib import Path

import pytest
import torch

from fakes import checkpoints
from fakes.checkpoints import Shape
from fakes.mixtures import mixed, served, told
from fakes.overlapping import Overlapping, WeightCopies
from fakes.recording import OPS, Recordings
from kvasir_api.options import ServeOptions
from kvasir_runtime.runner.runner import ModelRunner
from kvasir_runtime.runner.startup.build import build

SHAPE = Shape(hidden_size=128, num_layers=7, head_dim=32, intermediate_size=256, max_position_embeddings=256)
LAYER_BYTES = 4 * (128 * (128 + 2 * 64) + 128 * 128 + 3 * 128 * 256 + 2 * 128)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("model"), SHAPE)


def made(model: Path, on_host: int, *, graphs: bool, **options: str) -> tuple[ModelRunner, WeightCopies]:
    """on_host: layers."""
    copies = WeightCopies()
    given = ServeOptions(
        model=str(model),
        device="cpu",
        kv_cache_tokens=64 * 16,
        max_sequences=9,
        max_batch_tokens=64,
        startup_cache="off",
        cuda_graphs=graphs,
        weights_host_bytes=on_host * LAYER_BYTES,
        **options,
    )
    capturer = Recordings if graphs else None
    return build(given, lambda progress: None, Overlapping(), capturer, OPS, copies), copies


@cache
def undisturbed(model: Path, quantization: str) -> dict[str, object]:
    runner, _ = made(model, 0, graphs=False, quantization=quantization)
    return {name: told(events) for name, events in served(runner, mixed(), depth=2).items()}


@pytest.mark.parametrize(
    ("on_host", "graphs", "quantization"),
    [
        *[(3, False, "none"), (7, False, "none"), (6, True, "none"), (4, False, "int8")],
        pytest.param(3, True, "fp8", marks=pytest.mark.long),
    ],
)
def test_the_same_answers_come_with_layers_on_the_host(
    model: Path, on_host: int, graphs: bool, quantization: str
) -> None:
    torch.set_num_threads(1)
    runner, copies = made(model, on_host, graphs=graphs, quantization=quantization)
    assert runner.facts.host_weights_bytes > 0
    assert runner.facts.weights_copy_s == 0.125
    story = served(runner, mixed(), depth=2)
    assert {name: told(events) for name, events in story.items()} == undisturbed(model, quantization)
    assert copies.log.count("copy") > on_host
    assert ("graphs" in runner.facts.kernels) == graphs
