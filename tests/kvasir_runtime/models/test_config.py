"""Configs are read once, bounded and typed; what cannot be served is one line that names the key."""

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.checkpoints import Shape, config_json
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec, parameter_shapes
from kvasir_runtime.models.config import read_config, read_eos_token_ids
from kvasir_runtime.models.registry import family_of


def folder_with(tmp_path: Path, changes: dict[str, Any], *, family: str = "llama", num_layers: int = 4) -> Path:
    config = config_json(Shape(family=family, num_layers=num_layers)) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def spec_of(folder: Path) -> DecoderSpec:
    config = read_config(folder)
    return family_of(config).spec(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"vocab_size": 2**40}, "vocab_size"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
        ({"architectures": []}, "architectures"),
        (
            {"architectures": ["MambaForCausalLM"]},
            "MambaForCausalLM is not supported; supported are LlamaForCausalLM, ",
        ),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 4"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"head_dim": None, "hidden_size": 66}, "does not divide hidden_size 66"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised with gptq .* --quantization int8"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope type dynamic is not supported"),
        ({"rope_scaling": {"type": "linear"}}, "rope type linear needs a factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ],
)
def test_refused_config_names_the_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = folder_with(tmp_path, changes)
    with pytest.raises(ModelError, match=message) as caught:
        spec_of(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("text", "message"), [(None, "does not exist"), ("{", "config.json"), ("[]", "config.json")])
def test_absent_or_malformed_config_is_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("llama", {"sliding_window": 8}, (0, 0, 0, 0)),
        ("mistral", {"sliding_window": None}, (0, 0, 0, 0)),
        ("mistral", {"sliding_window": 8}, (8, 8, 8, 8)),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 8}, (0, 0, 0, 0)),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}, (0, 0, 0, 8)),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            (8, 0, 8, 0),
        ),
    ],
)
def test_windows_of_layers(tmp_path: Path, family: str, changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    assert spec_of(folder_with(tmp_path, changes, family=family)).windows == windows


@pytest.mark.parametrize(
    ("family", "changes", "extra"),
    [
        ("llama", {}, set()),
        ("llama", {"attention_bias": True, "mlp_bias": True}, {"qkv.bias", "output.bias", "gate_up.bias", "down.bias"}),
        ("mistral", {}, set()),
        ("qwen2", {}, {"qkv.bias"}),
        ("qwen3", {}, {"query_norm", "key_norm"}),
    ],
)
def test_families_declare_their_own_tensors(
    tmp_path: Path, family: str, changes: dict[str, Any], extra: set[str]
) -> None:
    spec = spec_of(folder_with(tmp_path, changes, family=family, num_layers=1))
    names = {name.removeprefix("layers.0.") for name in parameter_shapes(spec)}
    usual = {"attention_norm", "qkv.weight", "output.weight", "mlp_norm", "gate_up.weight", "down.weight"}
    assert names == usual | {"embedding", "norm", "head.weight"} | extra


@pytest.mark.parametrize(
    ("generation", "config", "wanted"),
    [(None, 7, (7,)), ({"eos_token_id": [3, 7]}, 7, (3, 7)), ({}, [5, 6], (5, 6)), ({"eos_token_id": 10**6}, None, ())],
)
def test_eos_ids_come_from_both_files(tmp_path: Path, generation: Any, config: Any, wanted: tuple[int, ...]) -> None:
    folder = folder_with(tmp_path, {"eos_token_id": config})
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    assert read_eos_token_ids(folder, read_config(folder)) == wanted
