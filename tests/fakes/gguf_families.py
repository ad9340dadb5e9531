"""Writes GGUF files of checkpoints of families, with the tensor names of the `gguf` package: a second implementation.

Rows and numbers are as llama.cpp's converter leaves them: Granite's pairs are interleaved, Gemma's norms have their 1.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.torch import load_file

from fakes.ggufs import interleaved

# By model_type: the architecture, and keys of the file for fields of config.json.
ARCHITECTURES: dict[str, tuple[str, dict[str, str]]] = {
    "phi3": ("phi3", {"attention.sliding_window": "sliding_window"}),
    "granite": (
        "granite",
        {
            "embedding_scale": "embedding_multiplier",
            "residual_scale": "residual_multiplier",
            "attention.scale": "attention_multiplier",
            "logit_scale": "logits_scaling",
        },
    ),
    "glm4": ("glm4", {}),
    "olmo2": ("olmo2", {}),
    "cohere": ("command-r", {"logit_scale": "logit_scale"}),
    "starcoder2": ("starcoder2", {"attention.sliding_window": "sliding_window"}),
    "gemma2": (
        "gemma2",
        {
            "attention.sliding_window": "sliding_window",
            "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
    ),
    "gemma3_text": ("gemma3", {"attention.sliding_window": "sliding_window"}),
}
EPSILONS = {"norm_epsilon": "layer_norm_epsilon", "layer_norm_eps": "layer_norm_epsilon"}


def write(source: Path, path: Path, *, long: tuple[float, ...] = (), short: tuple[float, ...] = ()) -> Path:
    """One file in F32, with a tokenizer that nothing reads. long, short: rotary factors."""
    config = json.loads((source / "config.json").read_text())
    arch, fields = ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, arch)
    for key, value in (_sizes(config) | {key: config.get(field) for key, field in fields.items()}).items():
        if isinstance(value, float):
            writer.add_float32(f"{arch}.{key}", value)
        elif value is not None:
            writer.add_uint32(f"{arch}.{key}", value)
    writer.add_array("tokenizer.ggml.tokens", [f"t{index}" for index in range(config["vocab_size"])])
    writer.add_uint32("tokenizer.ggml.eos_token_id", config["eos_token_id"])
    for kind, factors in (("long", long), ("short", short)):
        if factors:
            writer.add_tensor(f"rope_factors_{kind}.weight", np.array(factors, dtype=np.float32))
    known = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(known, config["num_hidden_layers"])
    for name, tensor in load_file(source / "model.safetensors").items():
        rows = tensor.float().numpy()
        if arch == "granite" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
            rows = interleaved(rows, heads)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            rows = rows + np.float32(1)
        ours = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert ours is not None, name
        writer.add_tensor(ours, np.ascontiguousarray(rows))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _sizes(config: dict[str, Any]) -> dict[str, Any]:
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    epsilon = next((name for name in EPSILONS if name in config), "rms_norm_eps")
    return {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": width,
        "attention.value_length": width,
        "rope.freq_base": config["rope_theta"],
        "rope.dimension_count": int(width * config.get("partial_rotary_factor", 1)),
        f"attention.{EPSILONS.get(epsilon, 'layer_norm_rms_epsilon')}": config[epsilon],
    }
