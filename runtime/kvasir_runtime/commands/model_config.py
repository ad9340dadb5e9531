"""config.json of a model wherever it is: on this machine, on the hub, in a bucket or a registry. Called by commands."""

import json
from pathlib import Path
from typing import Any

from kvasir_api import hf_config, model_uri
from kvasir_runtime import gguf, hub, source
from kvasir_runtime.errors import ModelError
from kvasir_runtime.fetch import fetched_model


def read_config(model: str, revision: str = "") -> dict[str, Any]:
    """config.json of a directory, of that file itself, of a GGUF file, or of a model on the hub, in a bucket or in a
    registry, of which only this file is fetched, or the header of a GGUF file.

    Raises ValueError with one line.
    """
    named = on_hub(model, revision)
    if named is not None:
        if named.file:
            return hub.gguf_config(named, hub.listing(named))
        return read_file(hub.config_file(named, ""))
    if model_uri.is_fetched(model):
        try:
            return fetched_model.config(fetched_model.listing(model))
        except ModelError as error:
            raise ValueError(str(error)) from error
    path = _local(model, revision)
    if gguf.is_gguf(path):
        return gguf_config(path)
    if path.is_dir():
        path /= "config.json"
    elif not path.is_file():
        raise ValueError(f"model directory {model} does not exist")
    return read_file(path)


def on_hub(model: str, revision: str) -> hub.HubName | None:
    """The name on the hub where the model is none on this machine, None where it is."""
    if model_uri.is_fetched(model) and not model.startswith(model_uri.HUB):
        return None
    try:
        named = None if Path(model).expanduser().exists() else hub.parsed(model, revision)
    except ModelError as error:
        raise ValueError(str(error)) from error
    return named


def read_file(path: Path) -> dict[str, Any]:
    """A config.json, with the quantization of the file beside it. Raises ValueError that names the file."""
    beside = path.with_name(hf_config.QUANTIZATION_FILE)
    return hf_config.with_quantization(_object(path), _object(beside) if beside.is_file() else {})


def _object(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ValueError that names the file."""
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} is not a JSON object")
    return config


def gguf_config(path: Path) -> dict[str, Any]:
    """The metadata of a GGUF file in the form of config.json. Raises ValueError with one line."""
    try:
        return gguf.config_with_bits(gguf.read(path))
    except ModelError as error:
        raise ValueError(str(error)) from error


def _local(model: str, revision: str) -> Path:
    """A path, with the one GGUF file of a directory that holds nothing else for the directory."""
    path = Path(model).expanduser()
    try:
        return source.resolve(model, revision) if path.exists() and (revision or path.is_dir()) else path
    except ModelError as error:
        raise ValueError(str(error)) from error
