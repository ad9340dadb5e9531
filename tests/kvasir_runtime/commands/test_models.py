"""`kvasir models`: what is in the cache and in directories, with the reason where something cannot be served."""

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from fakes import checkpoints, ggufs
from kvasir_runtime.commands.models import cache_folder, described, local_models, models

MODEL = Path(__file__).parents[3] / "operator/kvasir_local/demo/model"


@pytest.fixture
def cache(tmp_path) -> Path:
    repository = tmp_path / "hub/models--org--tiny-model"
    shutil.copytree(MODEL, repository / "snapshots/abc")
    shutil.copytree(MODEL, repository / "snapshots/old")
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("abc")
    (tmp_path / "hub/models--half").mkdir()
    return tmp_path / "hub"


def test_cached_models_are_found_once_by_their_hub_name(cache):
    (only,) = local_models((), cache)
    assert (only.name, only.architecture, only.problem) == ("org/tiny-model", "LlamaForCausalLM", "")
    assert only.weights_bytes == (MODEL / "model.safetensors").stat().st_size
    assert only.folder.endswith("snapshots/abc")


def test_directories_are_models_or_hold_them(tmp_path):
    names = [Path(model.name).name for model in local_models((str(MODEL), str(MODEL.parent)), tmp_path / "none")]
    assert names == ["model"]


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("config.json", '{"architectures": ["LlamaForCausalLM"]}', "config.json"),
        ("config.json", "not JSON", "config.json"),
        ("model.safetensors", None, "no safetensors"),
        ("tokenizer.json", None, "has no tokenizer"),
    ],
)
def test_the_reason_is_named(tmp_path, file, text, problem):
    folder = shutil.copytree(MODEL, tmp_path / "m")
    (folder / file).unlink()
    if text is not None:
        (folder / file).write_text(text)
    assert problem in described("m", folder).problem


def test_an_unsupported_architecture_is_named(tmp_path):
    folder = shutil.copytree(MODEL, tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModel"]}))
    one = described("m", folder)
    assert one.architecture == "NoSuchModel"
    assert "NoSuchModel is not supported" in one.problem
    assert "may be served slowly through transformers" in one.problem


def test_the_table_and_its_json(cache):
    runner = CliRunner(env={"HF_HUB_CACHE": str(cache)})
    shown = runner.invoke(models, [])
    assert shown.output.splitlines()[0].split() == ["NAME", "ARCHITECTURE", "WEIGHTS", "SERVED"]
    assert shown.output.splitlines()[1].split() == ["org/tiny-model", "LlamaForCausalLM", "3.8", "MiB", "yes"]
    assert json.loads(runner.invoke(models, ["--json"]).output)[0]["name"] == "org/tiny-model"
    empty = CliRunner(env={"HF_HUB_CACHE": str(cache / "none")}).invoke(models, [])
    assert empty.output.startswith("No models in ")


@pytest.mark.parametrize(
    ("environment", "want"),
    [
        ({"HF_HUB_CACHE": "/a", "HF_HOME": "/b"}, "/a"),
        ({"HF_HOME": "/b"}, "/b/hub"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/huggingface/hub"),
    ],
)
def test_the_cache_is_where_the_hubs_library_has_it(environment, want):
    assert cache_folder(environment) == Path(want)


def test_gguf_files_are_listed_and_judged(tmp_path):
    source = checkpoints.write(tmp_path / "source", checkpoints.Shape())
    good = ggufs.write(source, tmp_path / "files" / "good.gguf", kind="Q8_0")
    ggufs.write(source, tmp_path / "files" / "odd.gguf", tokenizer__ggml__pre="novel-7b")
    (tmp_path / "files" / "cut.gguf").write_bytes(good.read_bytes()[:3000])
    models = {Path(model.name).name: model for model in local_models((str(tmp_path / "files"),), tmp_path / "none")}
    assert models["good.gguf"].problem == ""
    assert models["good.gguf"].weights_bytes == good.stat().st_size
    assert models["good.gguf"].architecture == "LlamaForCausalLM"
    assert "novel-7b is not supported" in models["odd.gguf"].problem
    assert "truncated" in models["cut.gguf"].problem


def test_architectures_that_can_be_served_are_listed_with_models_of_each():
    shown = CliRunner().invoke(models, ["--available"]).output.splitlines()
    assert shown[0].split() == ["ARCHITECTURE", "MODELS"]
    assert any(line.startswith("Qwen3ForCausalLM ") for line in shown)
    listed = json.loads(CliRunner().invoke(models, ["--available", "--json"]).output)
    assert len(listed) == len(shown) - 1
    assert all(row["models"] for row in listed)


def test_models_that_were_fetched_from_elsewhere_are_listed(tmp_path):
    entry = tmp_path / "s3-bucket-tiny-0123456789abcdef"
    checkpoints.write(entry / "tiny", checkpoints.Shape())
    (entry / ".whole").touch()
    (tmp_path / "half").mkdir()
    runner = CliRunner(env={"HF_HUB_CACHE": str(tmp_path / "none"), "KVASIR_MODEL_CACHE": str(tmp_path)})
    (row,) = json.loads(runner.invoke(models, ["--json"]).output)
    assert (row["name"], row["folder"]) == (entry.name, str(entry / "tiny"))
