"""What a checkpoint's config is, wherever it is and in how many files: checkpoints of ModelOpt state their quantization
in a file beside config.json, and are forecast as they are held.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fakes import checkpoints, e2m1_checkpoints, fp8_checkpoints, hub, left_in_full, remote_files
from fakes.checkpoints import Shape
from kvasir_api import inspection
from kvasir_api.options import RuntimeOptions, ServeOptions
from kvasir_runtime.commands import model_config, model_facts
from kvasir_runtime.commands.fit_report import fit_report
from kvasir_runtime.errors import ModelError
from kvasir_runtime.fetch import fetched_model
from kvasir_runtime.models.config import read_config
from kvasir_runtime.runner.startup.build import build

SHAPE = Shape(hidden_size=256, num_heads=8, num_kv_heads=4, head_dim=32, num_layers=2, intermediate_size=384)
LAST_IN_FULL = {"exclude_modules": ["lm_head", "model.layers.1*"]}
CASES: dict[str, tuple[Callable[[Path], Any], dict[str, Any], float]] = {
    "nvfp4": (partial(e2m1_checkpoints.convert, style="modelopt"), LAST_IN_FULL, 9),
    "fp8": (partial(fp8_checkpoints.convert, style="tensor"), LAST_IN_FULL | {"quant_algo": "FP8"}, 17),
}

FETCHES = "from kvasir_runtime import hub; hub.fetch(hub.parsed('org/name'))"


@pytest.fixture(params=CASES)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, float]:
    """A checkpoint with layer 1 in full, and sixteenths of a byte for each number of layer 0 on a card."""
    from safetensors.torch import load_file

    convert, described, sixteenths = CASES[request.param]
    folder = checkpoints.write(tmp_path / "model", SHAPE)
    full = load_file(folder / "model.safetensors")
    convert(folder)
    left_in_full.restore(folder, full, r"\.1\.", described)
    left_in_full.apart(folder)
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    return folder, sixteenths


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_directory_is_forecast_as_it_is_held(stored: tuple[Path, float]) -> None:
    folder, sixteenths = stored
    for path in (folder, folder / "config.json"):
        config = model_config.read_config(str(path))
        shape = model_facts.shape_of(config)
        assert (shape.held.stored, shape.stored_plain) == (sixteenths, shape.matrices // 2)
    options = ServeOptions(model=str(folder), kv_cache_tokens=64, dtype="bfloat16", device="cpu")
    report = fit_report("m", config, memory_bytes=2**32, device="cpu", options=RuntimeOptions(dtype="bfloat16"))
    assert report.fit.weights_bytes == build(options, lambda _: None).facts.weights_bytes


def test_a_model_of_the_hub_is_forecast_by_both_files(stored: tuple[Path, float], tmp_path: Path) -> None:
    folder, sixteenths = stored
    with hub.serving(files=content(folder)) as found:
        said = inspection.decode_remote(hub.planned(found, tmp_path, "hf://org/name", "--facts", "-").stdout)
        assert said.facts is not None
        assert said.facts.shape == model_facts.shape_of(model_config.read_config(str(folder)))
        printed = hub.planned(found, tmp_path, "hf://org/name", "--memory", "4Gi", "--device", "cuda", "--json").stdout
        assert json.loads(printed)["stored_sixteenths"] == sixteenths
        assert not any(path.endswith(hub.WEIGHTS) for path in found.of("GET"))


def test_a_hub_that_does_not_say_whether_the_second_file_is_there_is_no_answer(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "model", SHAPE)
    asked = ("hf://org/name", "--memory", "4Gi", "--device", "cuda", "--json")
    with hub.serving(files=content(folder)) as found:
        found.silent = "hf_quant_config.json"
        done = hub.planned(found, tmp_path / "home", *asked)
        assert (done.returncode, done.stdout) == (2, "")
        assert "model org/name could not be fetched from the hub: Server disconnected" in done.stderr
        found.silent = ""
        first = hub.planned(found, tmp_path / "home", *asked)
        assert json.loads(first.stdout)["stored_sixteenths"] == 0
        found.silent = "hf_quant_config.json"
        assert hub.planned(found, tmp_path / "home", *asked).stdout == first.stdout  # it said so before


def test_a_mirror_that_refuses_the_second_file_without_the_code_of_the_hub_has_said_so(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "model", SHAPE)
    with hub.serving(files=content(folder)) as found:
        found.plain = True
        done = hub.planned(found, tmp_path / "home", "hf://org/name", "--memory", "4Gi", "--device", "cuda", "--json")
        assert (done.stderr, json.loads(done.stdout)["stored_sixteenths"]) == ("", 0)


def test_a_model_that_is_whole_in_the_cache_needs_no_hub_for_the_second_file(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "model", SHAPE)
    asked = ("hf://org/name", "--memory", "4Gi", "--device", "cuda", "--json")
    with hub.serving(files=content(folder)) as found:
        env = {**os.environ, **found.env(tmp_path / "home")}
        subprocess.run([sys.executable, "-c", FETCHES], env=env, check=True, timeout=100)
    assert json.loads(hub.planned(found, tmp_path / "home", *asked).stdout)["stored_sixteenths"] == 0


def test_a_model_of_a_bucket_is_forecast_by_both_files(stored: tuple[Path, float]) -> None:
    folder, _ = stored
    files = [remote_files.Source(one).file(name) for name, one in content(folder).items()]
    assert fetched_model.config(remote_files.model(*files)) == model_config.read_config(str(folder))


@pytest.mark.parametrize("algorithm", ["W4A8_AWQ", "W4A16_AWQ"])
def test_what_is_not_read_is_refused_by_either_file(tmp_path: Path, algorithm: str) -> None:
    folder = checkpoints.write(tmp_path, SHAPE)
    beside = folder / "hf_quant_config.json"
    beside.write_text(json.dumps({"quantization": {"quant_algo": algorithm}}))
    with pytest.raises(ModelError, match=f"quantized with modelopt to {algorithm}"):
        read_config(folder)
    with pytest.raises(ValueError, match=f"quantized with modelopt to {algorithm}"):
        model_facts.facts(model_config.read_config(str(folder)))
    beside.write_text("[]")
    with pytest.raises(ValueError, match=r"hf_quant_config\.json is not a JSON object"):
        model_config.read_config(str(folder))
