"""Layers behind pooling as sentence-transformers stores them, and those that cannot be computed."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

from fakes import encoder_checkpoints
from fakes.encoder_checkpoints import sentence_transformers
from kvasir_api.options import ServeOptions
from kvasir_runtime.arriving import ArrivingFolder, Shards
from kvasir_runtime.errors import ModelError
from kvasir_runtime.runner.startup import dense_modules
from kvasir_runtime.runner.startup.build import build

CPU = torch.device("cpu")
NAME = "model.safetensors"


def test_each_layer_computes_as_torchs_own(tmp_path: Path) -> None:
    dense = nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 5, bias=False), nn.Identity()).eval()
    sentence_transformers(tmp_path, "mean_tokens", dense=list(dense))
    vector = torch.randn(8)
    found = vector
    with torch.inference_mode():
        for layer in dense_modules.load(tmp_path, 8, CPU):
            found = layer(found)
        torch.testing.assert_close(found, dense(vector))


def test_a_model_without_them_has_none(tmp_path: Path) -> None:
    assert dense_modules.load(tmp_path, 8, CPU) == ()
    sentence_transformers(tmp_path, "mean_tokens")
    assert dense_modules.load(tmp_path, 8, CPU) == ()


def test_none_are_read_of_a_checkpoint_whose_embeddings_are_refused(tmp_path: Path) -> None:
    """It may be served for something else."""
    sentence_transformers(tmp_path, "mean_tokens", dense=[nn.Linear(8, 24), nn.Tanh()])
    listed = json.loads((tmp_path / "modules.json").read_text())
    (tmp_path / "modules.json").write_text(json.dumps([one for one in listed if "Pooling" not in one["type"]]))
    assert dense_modules.load(tmp_path, 8, CPU) == ()


@pytest.mark.parametrize("path", ["../2_Dense", "/etc", "a\0b"])
def test_a_path_out_of_the_checkpoint_is_refused(tmp_path: Path, path: str) -> None:
    (tmp_path / "modules.json").write_text(json.dumps([{"type": "Dense", "path": path}]))
    with pytest.raises(ModelError, match="leads out of the checkpoint"):
        dense_modules.load(tmp_path, 8, CPU)


def test_they_are_loaded_while_the_checkpoint_comes(tmp_path: Path) -> None:
    """Folders of one that comes are links into the real one."""
    folder = tmp_path / "m"
    encoder_checkpoints.write(folder, "bert")
    sentence_transformers(folder, "mean_tokens", dense=[nn.Linear(32, 24), nn.Tanh()])
    raw = (folder / NAME).read_bytes()
    header = raw[: 8 + int.from_bytes(raw[:8], "little")]
    (folder / NAME).rename(folder / "part")
    shards = Shards(headers={NAME: header}, sizes={NAME: len(raw)}, partials={NAME: "part"})
    coming = ArrivingFolder(folder, shards)
    coming.comes(NAME)

    def arrive() -> None:
        (folder / "part").rename(folder / NAME)
        coming.arrived(NAME)

    with ThreadPoolExecutor(1) as threads:
        arrived = threads.submit(arrive)
        options = ServeOptions(model=str(coming.path), device="cpu", max_sequences=2, startup_cache="off")
        assert build(options, lambda _: None).facts.hidden_size == 24
        arrived.result()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"activation_function": "torch.nn.modules.activation.Mish"}, "activation_function Mish is not supported"),
        ({"in_features": 9}, "in_features is 9, but 8 numbers come before it"),
        ({"out_features": 25}, r"linear\.bias has shape \[24\], expected \[25\]"),
        ({"out_features": 0}, "out_features"),
        ({"bias": False}, r"unexpected tensor linear\.bias"),
        ({"module_input_name": "token_embeddings"}, "module_input_name"),
        ({"use_residual": True}, "use_residual"),
    ],
)
def test_what_cannot_be_computed_names_the_file(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    sentence_transformers(tmp_path, "mean_tokens", dense=[nn.Linear(8, 24), nn.Tanh()])
    path = tmp_path / "2_Dense/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ModelError, match=f"2_Dense.*{why}"):
        dense_modules.load(tmp_path, 8, CPU)


def test_weights_that_can_run_code_are_not_opened(tmp_path: Path) -> None:
    sentence_transformers(tmp_path, "mean_tokens", dense=[nn.Linear(8, 24), nn.Tanh()])
    (tmp_path / "2_Dense/model.safetensors").rename(tmp_path / "2_Dense/pytorch_model.bin")
    with pytest.raises(ModelError, match="only pickled weights"):
        dense_modules.load(tmp_path, 8, CPU)
    (tmp_path / "2_Dense/config.json").unlink()
    with pytest.raises(ModelError, match="does not exist"):
        dense_modules.load(tmp_path, 8, CPU)
