"""What ChatGLM, and GLM-4 as first released, call the fields of a config.json. Called by `family_fields`."""

from typing import Any, Final

NAMES: Final = {
    "num_layers": "num_hidden_layers",
    "ffn_hidden_size": "intermediate_size",
    "multi_query_group_num": "num_key_value_heads",
    "kv_channels": "head_dim",
    "seq_length": "max_position_embeddings",
    "layernorm_epsilon": "rms_norm_eps",
    "add_qkv_bias": "attention_bias",
    "original_rope": "rope_interleave",
}
LEFT_OUT: Final = {"partial_rotary_factor": 0.5}
_NAMES_OF_ALL: Final = (["ChatGLMModel"], ["ChatGLMForConditionalGeneration"])
_BASE: Final = 10_000.0
_MOST_RATIO: Final = 2**20


def usual(document: dict[str, Any]) -> dict[str, Any]:
    """With the vocabulary as it is stored, the base of the rotary embedding, and the name of a model that generates,
    which they all do.
    """
    if document.get("architectures") in _NAMES_OF_ALL:
        document["architectures"] = ["ChatGLMForCausalLM"]
    ratio = document.get("rope_ratio", 1)
    is_ratio = isinstance(ratio, int | float) and 0 < ratio <= _MOST_RATIO
    document.setdefault("rope_theta", _BASE * ratio if is_ratio else ratio)  # which is refused as none
    return document | {"vocab_size": document.get("padded_vocab_size") or document.get("vocab_size")}
