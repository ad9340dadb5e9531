"""Configs are read once, bounded and typed; what cannot be served is one line that names the key."""

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.checkpoints import Shape, config_json
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec, parameter_shapes
from kvasir_runtime.models.config import read_config
from kvasir_runtime.models.registry import family_of


def folder_with(tmp_path: Path, changes: dict[str, Any], *, family: str = "llama", num_layers: int = 4) -> Path:
    config = config_json(Shape(family=family, num_layers=num_layers)) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def spec_of(folder: Path) -> DecoderSpec:
    config = read_config(folder)
    return family_of(config).spec(config)


def compressed(**weights: Any) -> dict[str, Any]:
    """As compressed-tensors describes checkpoints in fp8, with changes."""
    described = {"num_bits": 8, "type": "float", "strategy": "channel", "block_structure": None} | weights
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": described}}}


SPARSE = {"sparsity_config": {"format": "sparse-24-bitmask"}}
PACKED = {"format": "pack-quantized"}


def gptq(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 128} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": "64"}, "hidden_size"),
        ({"hidden_size": 0}, "hidden_size"),
        ({"vocab_size": 2**40}, "vocab_size"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers"),
        ({"architectures": []}, "architectures"),
        (
            {"architectures": ["JambaForCausalLM"]},
            "JambaForCausalLM is not supported; supported are LlamaForCausalLM, ",
        ),
        (
            {"architectures": ["Phi4MMForCausalLM"]},
            r"the nearest by its name is Phi3ForCausalLM \(Phi-3, .*\); supported are LlamaForCausalLM, ",
        ),
        (
            {"architectures": ["Qwen3OmniMoeForConditionalGeneration"]},
            "nearest by its name is Qwen3MoeForCausalLM",
        ),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide num_attention_heads 4"),
        ({"head_dim": 15}, "head_dim 15 is odd"),
        ({"head_dim": None, "hidden_size": 66}, "does not divide hidden_size 66"),
        ({"hidden_act": "gelu"}, "hidden_act gelu"),
        ({"quantization_config": {"quant_method": "aqlm"}}, "quantized with aqlm .* --quantization fp8"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "gptq to 3 bits, expected 4 or 8"),
        ({"quantization_config": gptq(checkpoint_format="marlin")}, "gptq in the layout marlin, expected gptq or"),
        ({"quantization_config": gptq(is_marlin_format=True)}, "gptq in the layout marlin"),
        ({"quantization_config": {"quant_method": "awq", "bits": 3}}, "awq to 3 bits, expected 4"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4, "version": "gemv"}}, "layout gemv, expected gemm"),
        ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 64]}}, r"blocks of \[64, 64\]"),
        ({"quantization_config": {"quant_method": "compressed-tensors"}}, "without config_groups"),
        ({"quantization_config": compressed(num_bits=4, type="int")}, "int of 4 bits in the layout unnamed"),
        (
            {"quantization_config": compressed(num_bits=4, type="int") | {"format": "marlin-24"}},
            "weights are int of 4 bits in the layout marlin-24 by compressed-tensors",
        ),
        ({"quantization_config": compressed(num_bits=8, type="int")}, "int of 8 bits in the layout unnamed"),
        (
            {"quantization_config": compressed(num_bits=4, type="int", strategy="group") | PACKED | SPARSE},
            r"sparse \(sparse-24-bitmask\) by compressed-tensors and int of 4 bits in the layout pack-quantized",
        ),
        (
            {"quantization_config": compressed(type="int", symmetric=False) | {"format": "int-quantized"} | SPARSE},
            "and asymmetric int of 8 bits in the layout int-quantized, expected fp8 or symmetric int8",
        ),
        (
            {"quantization_config": compressed() | {"sparsity_config": {"format": "sparse-bitmask"}}},
            r"weights are sparse \(sparse-bitmask\) by compressed-tensors",
        ),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}}, "modelopt to W4A8_AWQ"),
        (
            {
                "quantization_config": {
                    "quant_method": "modelopt",
                    "quant_algo": "MIXED_PRECISION",
                    "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "INT4_AWQ"}},
                }
            },
            "modelopt to INT4_AWQ",
        ),
        ({"quantization_config": compressed() | {"sparsity_config": "dense"}}, "sparsity_config is no object"),
        ({"quantization_config": compressed() | {"sparsity_config": [1]}}, "sparsity_config is no object"),
        ({"quantization_config": compressed(strategy="group")}, "scales by group"),
        ({"quantization_config": compressed(strategy="block", block_structure=[1, 64])}, r"by block \[1, 64\]"),
        ({"rope_scaling": {"type": "linear"}}, "rope type linear needs a factor"),
    ],
)
def test_refused_config_names_the_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = folder_with(tmp_path, changes)
    with pytest.raises(ModelError, match=message) as caught:
        spec_of(folder)
    assert "\n" not in str(caught.value)


def test_fields_of_other_families_may_be_null(tmp_path: Path) -> None:
    fields = (
        "bias",
        "use_bias",
        "qkv_bias",
        "alibi",
        "logit_scale",
        "embedding_multiplier",
        "parallel_attn",
        "clip_qkv",
    )
    plain, nulls = spec_of(folder_with(tmp_path, {})), spec_of(folder_with(tmp_path, dict.fromkeys(fields)))
    assert nulls == plain


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
        ("gemma2", {"sliding_window": None}, (4096, 0, 4096, 0)),
        ("gemma3_text", {"sliding_window": 8, "sliding_window_pattern": 3}, (8, 8, 0, 8)),
        ("gemma3_text", {"sliding_window": 8, "layer_types": ["full_attention"] * 4}, (0, 0, 0, 0)),
    ],
)
def test_windows_of_layers(tmp_path: Path, family: str, changes: dict[str, Any], windows: tuple[int, ...]) -> None:
    attentions = spec_of(folder_with(tmp_path, changes, family=family)).attentions
    assert tuple(attention.window for attention in attentions) == windows


@pytest.mark.parametrize(
    ("family", "changes", "extra"),
    [
        ("llama", {}, set()),
        ("llama", {"attention_bias": True, "mlp_bias": True}, {"qkv.bias", "output.bias", "gate_up.bias", "down.bias"}),
        ("mistral", {}, set()),
        ("qwen2", {}, {"qkv.bias"}),
        ("qwen3", {}, {"query_norm", "key_norm"}),
        ("gemma2", {}, {"attention_outer_norm", "mlp_outer_norm"}),
        ("gemma3_text", {}, {"attention_outer_norm", "mlp_outer_norm", "query_norm", "key_norm"}),
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
    ("changes", "wanted"),
    [
        ({}, {"attention_cap": 2.0, "logit_cap": 5.0, "attention_scale": 24**-0.5, "embedding_scale": 8.0}),
        ({"attn_logit_softcapping": None, "final_logit_softcapping": None}, {"attention_cap": 0.0, "logit_cap": 0.0}),
        ({"query_pre_attn_scalar": 144}, {"attention_scale": 1 / 12}),
        ({"tie_word_embeddings": None}, {"tied_embeddings": True}),
        ({"tie_word_embeddings": False}, {"tied_embeddings": False}),
    ],
)
def test_what_gemma_scales_and_caps(tmp_path: Path, changes: dict[str, Any], wanted: dict[str, Any]) -> None:
    spec = spec_of(folder_with(tmp_path, changes, family="gemma2"))
    assert {name: getattr(spec, name) for name in wanted} == wanted
    assert spec.usual, "C++ computes it in one call"


def test_a_gemma_config_that_names_no_caps_has_the_familys_own(tmp_path: Path) -> None:
    config = config_json(Shape(family="gemma2"))
    for name in ("attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar", "hidden_activation"):
        del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = spec_of(tmp_path)
    assert (spec.attention_cap, spec.logit_cap, spec.attention_scale) == (50.0, 30.0, 1 / 16)


LINEAR = {"rope_type": "linear", "factor": 8.0}


@pytest.mark.parametrize(
    ("changes", "full", "local"),
    [
        ({"rope_local_base_freq": 2e4}, RopeSpec(theta=1e6), RopeSpec(theta=2e4)),
        ({"rope_theta": None, "rope_local_base_freq": None}, RopeSpec(theta=1e6), RopeSpec(theta=1e4)),
        (
            {"rope_scaling": LINEAR},
            RopeSpec(kind="linear", theta=1e6, factor=8.0, original_max_position=4096),
            RopeSpec(theta=1e4),
        ),
        (
            {"rope_parameters": {"full_attention": {"rope_theta": 5e5}, "sliding_attention": {"rope_theta": 3e4}}},
            RopeSpec(theta=5e5),
            RopeSpec(theta=3e4),
        ),
    ],
)
def test_gemma_3_turns_layers_with_a_window_by_their_own_angles(
    tmp_path: Path, changes: dict[str, Any], full: RopeSpec, local: RopeSpec
) -> None:
    spec = spec_of(folder_with(tmp_path, changes, family="gemma3_text"))
    assert (spec.rope, spec.local_rope) == (full, local)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation gelu is not supported"),
        ("gemma2", {"use_bidirectional_attention": True}, "both directions .* of gemma2"),
        ("gemma2", {"layer_types": ["full_attention"]}, "layer_types must name"),
        ("llama", {"rope_parameters": {"full_attention": {"rope_theta": 5e5}}}, "for each kind of layer"),
    ],
)
def test_refused_attention_of_gemma_names_the_key(
    tmp_path: Path, family: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        spec_of(folder_with(tmp_path, changes, family=family))


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "fp8", "activation_scheme": "dynamic"},
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        compressed(),
        compressed() | SPARSE,
        compressed(strategy="tensor"),
        compressed(strategy="block", block_structure=[128, 128]),
    ],
)
def test_checkpoints_in_fp8_are_taken(tmp_path: Path, quantization: dict[str, Any]) -> None:
    assert spec_of(folder_with(tmp_path, {"quantization_config": quantization})).num_layers == 4


def test_a_text_model_inside_another_is_read(tmp_path: Path) -> None:
    inner = config_json(Shape(hidden_size=128))
    outer = {"architectures": ["LlamaForCausalLM"], "torch_dtype": "bfloat16", "text_config": inner, "hidden_size": 7}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    config = read_config(tmp_path)
    assert (config.hidden_size, config.vocab_size, config.num_hidden_layers) == (128, 320, 2)


def test_overrides_replace_what_the_file_says(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    config = read_config(folder, json.dumps({"rope_scaling": yarn}))
    assert family_of(config).spec(config).rope.kind == "yarn"
    with pytest.raises(ModelError, match=r"--hf-overrides: .*JSON object"):
        read_config(folder, "[]")
    with pytest.raises(ModelError, match="hidden_size"):
        read_config(folder, '{"hidden_size": "wide"}')
