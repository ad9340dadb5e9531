"""A model is a directory or a hub name; whatever goes wrong is one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvasir_api import names
from kvasir_runtime import hub, source
from kvasir_runtime.errors import ModelError


def test_directory_is_taken_as_it_is(tmp_path: Path) -> None:
    assert source.resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("model", ["/nowhere/model", "./nowhere", "a/b/c", "bad name", "~nobody-here/x", ""])
def test_path_that_is_not_there_is_said_to_be_one(model: str) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        source.resolve(model)


@pytest.mark.parametrize(
    ("model", "uri", "message", "shown"),
    [
        ("/models/a", "pvc://c/a", "model directory /models/a is absent", "model directory pvc://c/a is absent"),
        (
            "/models",
            "file:///x/",
            "/models holds two, such as /models/b.gguf",
            "file:///x holds two, such as file:///x/b.gguf",
        ),
        (
            "/models/a",
            "pvc://c/a",
            "/models/ab and /srv/models/a are others",
            "/models/ab and /srv/models/a are others",
        ),
        ("/models/a", "", "/models/a has no config.json", "/models/a has no config.json"),
    ],
)
def test_a_message_names_the_model_as_the_service_does(model: str, uri: str, message: str, shown: str) -> None:
    assert source.with_user_name(message, model, {names.ENV_MODEL_URI: uri}) == shown


def test_file_is_a_model_if_it_is_gguf(tmp_path: Path) -> None:
    for name in ("model.gguf", "model.safetensors"):
        (tmp_path / name).touch()
    assert source.resolve(str(tmp_path / "model.gguf")) == tmp_path / "model.gguf"
    with pytest.raises(ModelError, match=r"is a file; expected a \.gguf"):
        source.resolve(str(tmp_path / "model.safetensors"))


def test_directory_of_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    assert source.resolve(str(tmp_path)) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").touch()
    with pytest.raises(ModelError, match=r"holds 2 GGUF files; name one of them, for example .*a\.gguf"):
        source.resolve(str(tmp_path))
    (tmp_path / "config.json").touch()
    assert source.resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("model", "is_one"),
    [
        ("org/name/file-Q4_K_M.gguf", True),
        ("org/name/file.safetensors", False),
        ("./org/name/file.gguf", False),
        ("org/file.gguf", False),
        ("a/b/c/file.gguf", False),
        ("/org/name/file.gguf", False),
        ("org/name/..gguf", False),
    ],
)
def test_file_on_the_hub_is_told_from_a_path(model: str, is_one: bool) -> None:
    assert hub.is_file(model) is is_one


@pytest.mark.parametrize("model", ["{}/tiny-q4.gguf", "{}/tiny-q4", "org/tiny-q4"])
def test_name_is_the_last_part(tmp_path: Path, model: str) -> None:
    assert source.name_of(model.format(tmp_path)) == "tiny-q4"


def in_a_process(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """The hub's library reads its environment when it is imported, so each case is its own process."""
    env = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_a_revision_is_for_models_on_the_hub(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--revision v1 is for models on the hub"):
        source.resolve(str(tmp_path), "v1")


def test_hub_name_offline_is_found_in_the_cache_or_refused(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub/models--org--here/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    refs = tmp_path / "hub/models--org--here/refs"
    refs.mkdir()
    (refs / "main").write_text("abc")
    (snapshot / "a.gguf").touch()
    code = (
        "import sys\n"
        "from kvasir_runtime import errors, source\n"
        "print(source.resolve('org/here'))\n"
        "print(source.resolve('org/here/a.gguf'))\n"
        "try:\n"
        "    source.resolve('org/here/b.gguf')\n"
        "except errors.StartError as error:\n"
        "    print(error)\n"
        "try:\n"
        "    source.resolve('org/absent')\n"
        "except errors.StartError as error:\n"
        "    print(error)\n"
        "print('torch' in sys.modules)\n"
    )
    done = in_a_process(code, tmp_path)
    assert done.returncode == 0, done.stderr
    path, file, no_file, refusal, has_torch = done.stdout.splitlines()
    assert path == str(snapshot)
    assert file == str(snapshot / "a.gguf")
    assert "org/here is not a directory, is not in the local cache" in no_file
    assert "org/absent is not a directory, is not in the local cache" in refusal
    assert has_torch == "False"


@pytest.mark.parametrize(("uri", "found"), [("oci://host/org/name:v1", "a/model"), ("pvc://models/tiny", "")])
def test_an_image_that_is_mounted_has_its_model_in_any_directory(tmp_path, monkeypatch, uri, found):
    (tmp_path / "a" / "model").mkdir(parents=True)
    (tmp_path / "a" / "model" / "config.json").write_text("{}")
    monkeypatch.setenv(names.ENV_MODEL_URI, uri)
    assert source.resolve(str(tmp_path)) == tmp_path / found
