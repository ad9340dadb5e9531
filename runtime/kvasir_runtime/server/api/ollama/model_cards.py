"""The documents of Ollama's API about the served model: lists, details, capabilities.

Called by the routes. Pure but for reading the model's config, which is small. A list is answered while the model loads.
"""

import hashlib
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from kvasir_api import forecast, hf_config, http_apis
from kvasir_runtime.server.app_state import AppState, ServedModel

FOREVER: Final = "9999-12-31T23:59:59Z"
PRECISIONS: Final = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
Document = dict[str, Any]


def tags(app_state: AppState) -> Document:
    """`/api/tags`: every name of the model."""
    return {"models": [_card(name, app_state) | {"modified_at": _time(app_state.created)} for name in app_state.names]}


def running(app_state: AppState) -> Document:
    """`/api/ps`: the same once it is loaded, and never unloaded."""
    if app_state.served_model is None:
        return {"models": []}
    ready = app_state.served_model.profile.ready
    on_device = ready.weights_bytes if ready is not None and ready.device.startswith("cuda") else 0
    facts = {
        "expires_at": FOREVER,
        "size_vram": on_device,
        "context_length": app_state.served_model.profile.max_context,
    }
    return {"models": [_card(name, app_state) | facts for name in app_state.names]}


def show(app_state: AppState, served_model: ServedModel) -> Document:
    """`/api/show`: how it is built, its template, and what it is able to do."""
    config = _config(served_model)
    family = str(config.get("model_type", ""))
    info: Document = {"general.architecture": family, "general.parameter_count": _parameters(config)}
    if family:
        info[f"{family}.context_length"] = served_model.profile.max_context
        for name, field in {
            "block_count": "num_hidden_layers",
            "embedding_length": "hidden_size",
            "attention.head_count": "num_attention_heads",
            "attention.head_count_kv": "num_key_value_heads",
            "feed_forward_length": "intermediate_size",
        }.items():
            if isinstance(config.get(field), int):
                info[f"{family}.{name}"] = config[field]
    template = served_model.profile.tokenizer.template
    return {
        "modelfile": "",
        "parameters": "",
        "template": template.source if template is not None else "",
        "details": _details(served_model),
        "model_info": info,
        "capabilities": _capabilities(served_model),
        "modified_at": _time(app_state.created),
    }


def _card(name: str, app_state: AppState) -> Document:
    served_model = app_state.served_model
    ready = served_model.profile.ready if served_model is not None else None
    tagged = name if ":" in name else name + http_apis.LATEST
    identity = f"{name} {served_model.fingerprint if served_model is not None else ''}"
    return {
        "name": tagged,
        "model": tagged,
        "size": ready.weights_bytes if ready is not None else 0,
        "digest": hashlib.sha256(identity.encode()).hexdigest(),
        "details": _details(served_model),
    }


def _details(served_model: ServedModel | None) -> Document:
    config = _config(served_model) if served_model is not None else {}
    ready = served_model.profile.ready if served_model is not None else None
    family = str(config.get("model_type", ""))
    precision = (ready.quantization or PRECISIONS.get(ready.dtype, ready.dtype)) if ready is not None else ""
    return {
        "parent_model": "",
        "format": "safetensors" if config else "gguf" if ready is not None else "",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": _human(_parameters(config)),
        "quantization_level": precision.upper(),
    }


def _capabilities(served_model: ServedModel) -> list[str]:
    tools, reasoning = served_model.profile.parsers
    found = ["completion"]
    template = served_model.profile.tokenizer.template_for(("any",))
    if tools not in {"", "none"} and template is not None and "tools" in template.switches:
        found.append("tools")
    return [*found, "thinking"] if reasoning not in {"", "none"} else found


def _config(served_model: ServedModel) -> Document:
    """The model's config.json, flattened; {} for a file that is all of a model."""
    path: Path | None = served_model.folder / "config.json" if served_model.folder is not None else None
    try:
        found = json.loads(path.read_bytes()) if path is not None else {}
    except (OSError, ValueError):
        return {}
    return hf_config.flattened(found) if isinstance(found, dict) else {}


def _parameters(config: Document) -> int:
    try:
        return forecast.shape(config).parameters
    except ValueError:
        return 0


def _human(parameters: int) -> str:
    """As Ollama writes it: 494.03M, 7.6B."""
    if parameters >= 1_000_000_000:
        return f"{parameters / 1e9:.1f}B"
    return f"{parameters / 1e6:.2f}M" if parameters >= 1_000_000 else f"{parameters / 1e3:.2f}K" if parameters else ""


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
