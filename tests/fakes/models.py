"""What an inspection may read of a model, without a model."""

from typing import Any, Final

from kvasir_api import forecast, inspection

QWEN3_8B: Final = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288,
    "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "vocab_size": 151936, "max_position_embeddings": 40960, "tie_word_embeddings": False, "dtype": "bfloat16",
}  # fmt: skip
LLAMA_8B: Final = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
"""15 GiB of weights, 128 KiB of cache for a token."""

QWEN3_30B: Final = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144,
    "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
    "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1, "vocab_size": 151_936,
    "max_position_embeddings": 40_960, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
"""54 GiB of experts, 1.2 GiB of table and head, 1.7 GiB else, 96 KiB of cache for a token."""


def facts(**fields: Any) -> inspection.ModelFacts:
    """Facts of LLAMA_8B, unless told otherwise."""
    given = {"architecture": "LlamaForCausalLM", "supported": True, "cpu_dtype": "float32", **fields}
    return inspection.ModelFacts(**{"shape": forecast.shape(LLAMA_8B), **given})


def words(**fields: Any) -> str:
    """The last words of a pod that read it."""
    return inspection.encode(facts(**fields)).decode()
