"""What ChatGLM, and GLM-4 as first released, call the fields of a config.json. Called by `family_fields`."""

from collections.abc import Mapping
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
BASE: Final = 10_000.0
"""Of the rotary embedding, where `rope_ratio` is 1."""
MOST_RATIO: Final = 2**20
_VOCABULARY: Final = 65_024
"""Of ChatGLM 2 and 3; the others have larger ones."""
_ROTARY: Final = ("rope_theta", "rope_scaling")
_DIVIDES, _MULTIPLIES = "chatglm2", "chatglm3"
"""In names of models: `rope_ratio` divides positions in ChatGLM 2, and multiplies the base in those behind it."""


def usual(document: dict[str, Any]) -> dict[str, Any]:
    """With the vocabulary as it is stored, the rotary embedding, and the name of a model that generates, which they all
    do. Where nothing says what `rope_ratio` does, there is no base.
    """
    if document.get("architectures") in _NAMES_OF_ALL:
        document["architectures"] = ["ChatGLMForCausalLM"]
    found = {name: value for name, value in document.items() if name not in _ROTARY or value is not None}
    found["vocab_size"] = document.get("padded_vocab_size") or document.get("vocab_size")
    ratio, names = document.get("rope_ratio", 1), _names(document)
    is_ratio = isinstance(ratio, int | float) and 0 < ratio <= MOST_RATIO
    if not is_ratio:
        return found  # which is refused as none
    divides, multiplies = (name in names for name in (_DIVIDES, _MULTIPLIES))
    if ratio != 1 and divides and not multiplies:
        return {"rope_theta": BASE, "rope_scaling": {"rope_type": "linear", "factor": ratio}} | found
    if ratio != 1 and found["vocab_size"] == _VOCABULARY and divides == multiplies:
        return found
    return {"rope_theta": BASE * ratio} | found


def _names(document: Mapping[str, Any]) -> str:
    """Where a config.json names the repository that it comes from, in lower case."""
    classes = document.get("auto_map")
    named = [document.get("_name_or_path"), *(classes.values() if isinstance(classes, Mapping) else ())]
    return " ".join(name.lower() for name in named if isinstance(name, str))
