"""What families of models call the fields of a config.json that most have under one name, and mean by leaving one out.

Called by `hf_config`, which gives documents the usual names by these tables.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from kvasir_api import chatglm, falcon_h1, jina, mamba2, nemotron_h

MOST_LAYERS: Final = 1024
_EPS: Final = {"layer_norm_eps": "rms_norm_eps"}
_MAMBA: Final = {
    "mamba_n_groups": "linear_num_key_heads",
    "mamba_n_heads": "linear_num_value_heads",
    "mamba_d_state": "linear_key_head_dim",
    "mamba_d_head": "linear_value_head_dim",
    "mamba_d_conv": "linear_conv_kernel_dim",
    "layers_block_type": "layer_types",
}
"""Mamba-2's groups, states and heads are keys and values of linear attention."""
RENAMED: Final[dict[str, dict[str, str]]] = {
    "starcoder2": {"norm_epsilon": "rms_norm_eps"},
    "ernie4_5_moe": {
        "moe_k": "num_experts_per_tok",
        "moe_num_experts": "num_experts",
        "moe_num_shared_experts": "n_shared_experts",
        "moe_layer_interval": "decoder_sparse_step",
    },
    "hunyuan_v1_moe": {"moe_topk": "num_experts_per_tok"},
    "llama4_text": {
        "attention_chunk_size": "sliding_window",
        "no_rope_layer_interval": "full_attention_interval",
        "interleave_moe_layer_step": "decoder_sparse_step",
    },
    "granitemoeshared": {"shared_intermediate_size": "shared_expert_intermediate_size"},
    "granitemoehybrid": _MAMBA,
    "bamba": _MAMBA,
    "falcon_h1": _MAMBA,
    "mamba2": mamba2.NAMES,
    "nemotron_h": nemotron_h.NAMES,
    "cohere": _EPS,
    "cohere2": _EPS,
    "chatglm": chatglm.NAMES,
    "mpt": {
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
        "max_seq_len": "max_position_embeddings",
        "layer_norm_epsilon": "rms_norm_eps",
    },
    "bloom": {
        "n_embed": "hidden_size",
        "n_head": "num_attention_heads",
        "n_layer": "num_hidden_layers",
        "seq_length": "max_position_embeddings",
        "layer_norm_epsilon": "rms_norm_eps",
    },
    "falcon": {
        "layer_norm_epsilon": "rms_norm_eps",
        "ffn_hidden_size": "intermediate_size",
        "num_kv_heads": "num_key_value_heads",
        "activation": "hidden_act",
        "n_embed": "hidden_size",
    },
    **dict.fromkeys(("bert", "jina_bert", "roberta", "xlm-roberta", "camembert", "mpnet"), _EPS),
    **dict.fromkeys(("gte", "new"), _EPS),
    jina.XLM_ROBERTA: _EPS | {"rotary_emb_base": "rope_theta"},
    "distilbert": {
        "dim": "hidden_size",
        "hidden_dim": "intermediate_size",
        "n_layers": "num_hidden_layers",
        "n_heads": "num_attention_heads",
        "activation": "hidden_act",
    },
    "nomic_bert": {
        "n_embd": "hidden_size",
        "n_inner": "intermediate_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "max_trained_positions": "max_position_embeddings",
        "rotary_emb_base": "rope_theta",
        "layer_norm_epsilon": "rms_norm_eps",
        "layer_norm_eps": "rms_norm_eps",
        "activation_function": "hidden_act",
    },
    "modernbert": {
        "norm_eps": "rms_norm_eps",
        "local_attention": "sliding_window",
        "global_attn_every_n_layers": "full_attention_interval",
    },
}
"""What families call fields that most others have under one name."""
ELSEWHERE: Final[dict[str, str]] = {
    "n_embd": "hidden_size",
    "d_model": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_layers": "num_hidden_layers",
    "num_layers": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_heads": "num_attention_heads",
    "n_inner": "intermediate_size",
    "ffn_dim": "intermediate_size",
    "n_positions": "max_position_embeddings",
}
"""The same of families that are not named here: for the sizes of models that are not declared."""
FOUR_TIMES: Final = ("falcon", "mpt", "bloom")
"""Feed-forward layers are as many times as wide, or expansion_ratio times, where a config names no width; and those of
GPT-2's fields."""
_BAICHUAN2_VOCABULARY: Final = 125_696
_BERT: Final = {
    "rms_norm_eps": 1e-12,
    "hidden_act": "gelu",
    "tie_word_embeddings": True,
    "max_position_embeddings": 512,
}
_ROBERTA: Final = _BERT | {"type_vocab_size": 2, "pad_token_id": 1}
_COHERE: Final = {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "logit_scale": 0.0625}
_ERNIE: Final = {"rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "tie_word_embeddings": True}
_MAMBA_SIZES: Final = {
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 128,
    "linear_key_head_dim": 256,
    "linear_conv_kernel_dim": 4,
    "mamba_expand": 2,
    "mamba_conv_bias": True,
}
_QWEN3_5: Final = {"partial_rotary_factor": 0.25, "head_dim": 256}
LEFT_OUT: Final[dict[str, dict[str, Any]]] = {
    "phi3": {"rms_norm_eps": 1e-5},
    "phimoe": {"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0},
    "ministral3": {"rms_norm_eps": 1e-5, "head_dim": 128},
    "apertus": {"rms_norm_eps": 1e-5, "hidden_act": "xielu"},
    "exaone4": {"rms_norm_eps": 1e-5, "sliding_window": 4096},
    "smollm3": {"rope_theta": 2_000_000.0, "tie_word_embeddings": True},
    "arcee": {"rms_norm_eps": 1e-5, "hidden_act": "relu2"},
    "hunyuan_v1_dense": {"rms_norm_eps": 1e-5},
    "hunyuan_v1_moe": {"rms_norm_eps": 1e-5},
    "dots1": {"max_window_layers": 62},
    "solar_open": {"rms_norm_eps": 1e-5, "rope_theta": 1_000_000.0, "head_dim": 128, "norm_topk_prob": True}
    | {"n_shared_experts": 1},
    "minimax_m2": {"rope_theta": 5_000_000.0, "head_dim": 128},
    "olmo2": {"rms_norm_eps": 1e-5},
    "olmo3": {"rms_norm_eps": 1e-5, "rope_theta": 500_000.0},
    "olmoe": {"rms_norm_eps": 1e-5},
    "ernie4_5": _ERNIE,
    "ernie4_5_moe": _ERNIE | {"num_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2},
    "glm": {"partial_rotary_factor": 0.5},
    "chatglm": chatglm.LEFT_OUT,
    "glm4": {"partial_rotary_factor": 0.5},
    "glm4_moe": {"partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5, "norm_topk_prob": True},
    "glm4_moe_lite": {"rms_norm_eps": 1e-5, "norm_topk_prob": True, "routed_scaling_factor": 1.8}
    | {"first_k_dense_replace": 1},
    "qwen2_moe": {"qkv_bias": True},
    "qwen3_next": {"partial_rotary_factor": 0.25},
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe_text": _QWEN3_5 | {"norm_topk_prob": True},
    "starcoder2": {
        "rms_norm_eps": 1e-5,
        "use_bias": True,
        "tie_word_embeddings": True,
        "hidden_act": "gelu_pytorch_tanh",
    },
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "mpt": {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "hidden_act": "gelu", "alibi": True},
    "bloom": {"rms_norm_eps": 1e-5, "tie_word_embeddings": True},
    "gpt_oss": {
        "rms_norm_eps": 1e-5,
        "rope_theta": 150_000.0,
        "head_dim": 64,
        "sliding_window": 128,
        "attention_bias": True,
    },
    "deepseek_v3": {"norm_topk_prob": True, "routed_scaling_factor": 2.5},
    "granitemoehybrid": _MAMBA_SIZES,
    "bamba": _MAMBA_SIZES | {"rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    "falcon_h1": _MAMBA_SIZES | falcon_h1.LEFT_OUT,
    "mamba2": mamba2.LEFT_OUT,
    "nemotron_h": nemotron_h.LEFT_OUT,
    "llama4_text": {"rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "num_experts_per_tok": 1, "use_qk_norm": True}
    | {"attn_temperature_tuning": True},
    "falcon": {"rms_norm_eps": 1e-5, "tie_word_embeddings": True, "hidden_act": "gelu"},
    "bert": _BERT | {"type_vocab_size": 2},
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), _ROBERTA),
    "mpnet": _BERT | {"pad_token_id": 1, "relative_attention_num_buckets": 32},
    "distilbert": _BERT,
    **dict.fromkeys(("gte", "new"), _BERT | {"type_vocab_size": 1}),
    jina.XLM_ROBERTA: _ROBERTA | {"type_vocab_size": 1, "rope_theta": 20_000.0, "position_embedding_type": jina.ROTARY},
    "nomic_bert": _BERT
    | {"type_vocab_size": 2, "max_position_embeddings": 2048, "rope_theta": 1000.0, "hidden_act": "silu"},
    "modernbert": {
        "rms_norm_eps": 1e-5,
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "tie_word_embeddings": True,
    },
}
"""What a family means by leaving out a field, where that is not what most mean."""


def _falcon(document: dict[str, Any]) -> dict[str, Any]:
    """Falcon's sizes as other families have them."""
    if not document.get("new_decoder_architecture"):
        heads = document.get("num_attention_heads")
        document["num_key_value_heads"] = heads if document.get("multi_query") is False else 1
    return document


def _mpt(document: dict[str, Any]) -> dict[str, Any]:
    """MPT's attn_config as fields of its own."""
    attention = document.get("attn_config")
    given: Mapping[str, Any] = attention if isinstance(attention, Mapping) else {}
    names = {"softmax_scale": "attention_multiplier"}
    return document | {names.get(name, name): value for name, value in given.items() if value is not None}


def _baichuan(document: dict[str, Any]) -> dict[str, Any]:
    """Models of 13B name model_max_length alone, and have ALiBi; the head of the second ones has rows of length 1."""
    implied = {
        "alibi": "max_position_embeddings" not in document,
        "max_position_embeddings": document.get("model_max_length", 4096),
        "normalised_head": document.get("vocab_size") == _BAICHUAN2_VOCABULARY,
    }
    return implied | document


def _llama4(document: dict[str, Any]) -> dict[str, Any]:
    """Llama 4's sizes as other families have them: its intermediate_size is that of an expert, and of the shared one."""
    if "intermediate_size_mlp" in document:
        size = document.pop("intermediate_size", None)
        document |= {"moe_intermediate_size": size, "shared_expert_intermediate_size": size}
        document["intermediate_size"] = document.pop("intermediate_size_mlp")
    sparse, layers = document.pop("moe_layers", None), document.get("num_hidden_layers")
    if isinstance(sparse, list) and isinstance(layers, int) and layers <= MOST_LAYERS:
        having = {at for at in sparse if isinstance(at, int)}
        document |= {"decoder_sparse_step": 1, "mlp_only_layers": [at for at in range(layers) if at not in having]}
    turning = document.get("no_rope_layers")
    if isinstance(turning, list) and turning and not document.get("layer_types"):
        document["layer_types"] = [("chunked" if turns else "full") + "_attention" for turns in turning]
    return document


def _mamba2(document: dict[str, Any]) -> dict[str, Any]:
    """Layers of Mamba-2 and of attention by name, as Granite 4 and Bamba mix them, and the width of a head."""
    layers, attending = document.get("num_hidden_layers"), document.pop("attn_layer_indices", None)
    if isinstance(layers, int) and layers <= MOST_LAYERS and not document.get("layer_types"):
        full = {at for at in attending or () if isinstance(at, int)} if isinstance(attending, list) else set()
        document["layer_types"] = [("full" if at in full else "linear") + "_attention" for at in range(layers)]
    if "shared_intermediate_size" in document:  # Granite's, which is the only one where there are no others
        shared = document.pop("shared_intermediate_size")
        if document.get("num_local_experts"):
            size = document.get("intermediate_size")
            document |= {"moe_intermediate_size": size, "shared_expert_intermediate_size": shared}
        else:
            document["intermediate_size"] = shared
    if not document.get("num_local_experts"):
        document.pop("num_experts_per_tok", None)  # 0, as there are none
    hidden, heads = document.get("hidden_size"), document.get("linear_num_value_heads", 128)
    expand = document.get("mamba_expand", 2)
    if not isinstance(document.get("linear_value_head_dim"), int) and all(
        isinstance(size, int) and size > 0 for size in (hidden, heads, expand)
    ):
        document["linear_value_head_dim"] = expand * hidden // heads
    return document


def _exaone4(document: dict[str, Any]) -> dict[str, Any]:
    """A pattern of letters as types of layers: L has a window, G, and the last of all, sees everything."""
    pattern, layers = document.get("sliding_window_pattern"), document.get("num_hidden_layers")
    if isinstance(pattern, str):
        del document["sliding_window_pattern"]
        if pattern and isinstance(layers, int) and layers <= MOST_LAYERS and not document.get("layer_types"):
            local = [pattern[at % len(pattern)] == "L" and at < layers - 1 for at in range(layers)]
            document["layer_types"] = [("sliding" if one else "full") + "_attention" for one in local]
    return document


def _smollm3(document: dict[str, Any]) -> dict[str, Any]:
    """Which layers turn, 1, and which do not, 0; windows are those of the latter."""
    layers, every = document.get("num_hidden_layers"), document.get("no_rope_layer_interval", 4)
    if document.get("no_rope_layers") is None and isinstance(layers, int) and isinstance(every, int) and every > 0:
        document["no_rope_layers"] = [int((at + 1) % every != 0) for at in range(min(layers, MOST_LAYERS))]
    turning = document.get("no_rope_layers")
    if document.get("use_sliding_window") and isinstance(turning, list) and not document.get("layer_types"):
        document["layer_types"] = [("full" if turns else "sliding") + "_attention" for turns in turning]
    return document


def _hunyuan_moe(document: dict[str, Any]) -> dict[str, Any]:
    """Numbers in place of lists that name the same one for each layer; experts have the width of others."""
    document.pop("moe_intermediate_size", None)
    for field in ("num_experts", "num_experts_per_tok"):
        given = document.get(field)
        if isinstance(given, list) and given and all(one == given[0] for one in given):
            document[field] = given[0]
    return document | {"shared_expert_intermediate_size": document.get("intermediate_size")}


def _ernie_moe(document: dict[str, Any]) -> dict[str, Any]:
    """Layers before the first and behind the last that have experts as those without."""
    layers, first = document.get("num_hidden_layers"), document.pop("moe_layer_start_index", 1)
    last = document.pop("moe_layer_end_index", -1)
    if isinstance(layers, int) and isinstance(first, int) and isinstance(last, int) and layers <= MOST_LAYERS:
        last = layers - 1 if last == -1 else last
        document.setdefault("mlp_only_layers", [at for at in range(layers) if not first <= at <= last])
    return document


def _with_rope(rope: Mapping[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """A rotary embedding where none is named."""
    is_named = any(document.get(field) for field in ("rope_parameters", "rope_scaling", "rope_theta"))
    return document if is_named else document | {"rope_parameters": dict(rope)}


_ROPE_OF_MINISTRAL: Final = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16_384,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}
_ROPE_OF_APERTUS: Final = {
    "rope_type": "llama3",
    "rope_theta": 12e6,
    "factor": 8.0,
    "original_max_position_embeddings": 8192,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def _all_experts(document: dict[str, Any]) -> dict[str, Any]:
    """All layers have experts, so that configs need not name another width."""
    return {"intermediate_size": document.get("moe_intermediate_size")} | document


def _glm4_moe_lite(document: dict[str, Any]) -> dict[str, Any]:
    """The layers without experts, which come first, as their number."""
    named = document.get("mlp_layer_types")
    if isinstance(named, list):
        first = next((at for at, one in enumerate(named) if one != "dense"), len(named))
        document["first_k_dense_replace"] = first
    return document


def _minimax_m2(document: dict[str, Any]) -> dict[str, Any]:
    """The part of a head that turns, by its numbers."""
    turned, width = document.get("rotary_dim"), document.get("head_dim", 128)
    if isinstance(turned, int) and isinstance(width, int) and width > 0:
        document.setdefault("partial_rotary_factor", turned / width)
    return document


RESHAPED: Final[Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "bert": jina.bert,
    jina.XLM_ROBERTA: jina.xlm_roberta,
    "new": lambda document: document | {"model_type": "gte"},
    "ministral3": partial(_with_rope, _ROPE_OF_MINISTRAL),
    "apertus": partial(_with_rope, _ROPE_OF_APERTUS),
    "ernie4_5_moe": _ernie_moe,
    "exaone4": _exaone4,
    "smollm3": _smollm3,
    "hunyuan_v1_moe": _hunyuan_moe,
    "qwen3_5_moe_text": _all_experts,
    "glm4_moe_lite": _glm4_moe_lite,
    "solar_open": _all_experts,
    "minimax_m2": _minimax_m2,
    "falcon": _falcon,
    "chatglm": chatglm.usual,
    "mpt": _mpt,
    "baichuan": _baichuan,
    "llama4_text": _llama4,
    "granitemoehybrid": _mamba2,
    "bamba": _mamba2,
    "falcon_h1": falcon_h1.halved,
    "mamba2": mamba2.stateful,
    "nemotron_h": nemotron_h.folded,
}
