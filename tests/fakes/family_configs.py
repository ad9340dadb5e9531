"""Configs of tiny models of families that `checkpoints` does not write, as checkpoints on the hub have them."""

from typing import Any

from fakes.family_model import Model
from fakes.mixture_configs import MIXTURES
from fakes.newer_family_configs import NEWER

VOCAB = 320
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
    "torch_dtype": "float32",
}


NORMS_OF_MEANS = {"rms_norm_eps": None, "hidden_act": None}
NO_SIZES = NORMS_OF_MEANS | dict.fromkeys(
    [
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"),
        *("max_position_embeddings", "rope_theta"),
    ]
)
YARN_OF_MINISTRAL: dict[str, Any] = {
    "factor": 16.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
YARN_OF_MINISTRAL |= {"mscale": 1.0, "mscale_all_dim": 1.0, "rope_type": "yarn", "rope_theta": 1e6}
MAMBA: dict[str, Any] = {
    "mamba_chunk_size": 32,
    "mamba_n_heads": 8,
    "mamba_d_state": 16,
    "mamba_d_head": "auto",
    "mamba_d_conv": 4,
    "mamba_expand": 2,
}
MAMBA2: dict[str, Any] = NO_SIZES | {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_heads": 8,
    "head_dim": 16,
    "state_size": 16,
    "conv_kernel": 4,
    "chunk_size": 32,
    "layer_norm_epsilon": 1e-5,
}
NEMOTRON_H: dict[str, Any] = NORMS_OF_MEANS | {
    "mamba_num_heads": 8,
    "ssm_state_size": 16,
    "conv_kernel": 4,
    "chunk_size": 32,
    "expand": 2,
    "head_dim": 24,
    "mlp_hidden_act": "relu2",
    "layer_norm_epsilon": 1e-5,
}
LIKE_GLM: dict[str, Any] = SIZES | {"model_type": "glm", "head_dim": 24, "rope_theta": 50_000.0, "attention_bias": True}
NULLS = ("q_lora_rank", "sliding_window")
"""Fields of which null says something."""
MODELS = (
    {
        "phi3": Model(architecture="Phi3ForCausalLM", family="phi3", config={"sliding_window": 24}),
        "phi4-mini": Model(
            architecture="Phi3ForCausalLM",
            family="phi3",
            config={
                "partial_rotary_factor": 0.5,
                "tie_word_embeddings": True,
            },
        ),
        "ministral3": Model(
            architecture="Ministral3ForCausalLM",
            family="ministral3",
            config={"head_dim": 24, "rope_theta": None, "tie_word_embeddings": True}
            | {"rope_parameters": YARN_OF_MINISTRAL | {"llama_4_scaling_beta": 0.5}},
        ),
        "granite": Model(
            architecture="GraniteForCausalLM",
            family="granite",
            config={
                "embedding_multiplier": 12.0,
                "residual_multiplier": 0.22,
                "attention_multiplier": 0.1,
                "logits_scaling": 2.0,
                "tie_word_embeddings": True,
            },
        ),
        "glm": Model(architecture="GlmForCausalLM", family="glm", config={"head_dim": 16, "attention_bias": True}),
        "chatglm": Model(
            architecture="ChatGLMModel",
            family="chatglm",
            config=NO_SIZES
            | {
                "vocab_size": None,
                "padded_vocab_size": VOCAB,
                "hidden_size": 64,
                "num_attention_heads": 4,
                "num_layers": 2,
            }
            | {"ffn_hidden_size": 96, "multi_query_attention": True, "multi_query_group_num": 2, "kv_channels": 24}
            | {"seq_length": 512, "rope_ratio": 5, "original_rope": True, "layernorm_epsilon": 1e-5, "rmsnorm": True}
            | {"add_qkv_bias": True, "add_bias_linear": False, "post_layer_norm": True, "tie_word_embeddings": False},
            like=LIKE_GLM,
        ),
        "glm4": Model(
            architecture="Glm4ForCausalLM",
            family="glm4",
            config={"head_dim": 16, "attention_bias": True, "partial_rotary_factor": 0.5},
        ),
        "internlm2": Model(
            architecture="InternLM2ForCausalLM",
            family="internlm2",
            config={"bias": False, "rope_scaling": {"type": "dynamic", "factor": 2.0}},
            like={"model_type": "llama"},
        ),
        "internlm3": Model(
            architecture="InternLM3ForCausalLM",
            family="internlm3",
            config={"bias": True, "qkv_bias": True, "head_dim": 24},
            like={"model_type": "llama", "attention_bias": True, "mlp_bias": True},
        ),
        "olmo2": Model(architecture="Olmo2ForCausalLM", family="olmo2"),
        "olmo3": Model(
            architecture="Olmo3ForCausalLM",
            family="olmo3",
            config={
                "rope_theta": 500000.0,
                "sliding_window": 24,
                "layer_types": ["sliding_attention", "full_attention"],
                "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
            },
        ),
        "granite4": Model(
            architecture="GraniteMoeHybridForCausalLM",
            family="granitemoehybrid",
            config=MAMBA
            | {
                "num_local_experts": 4,
                "num_experts_per_tok": 2,
                "shared_intermediate_size": 80,
                "intermediate_size": 48,
            }
            | {
                "embedding_multiplier": 12.0,
                "residual_multiplier": 0.22,
                "attention_multiplier": 0.1,
                "logits_scaling": 2.0,
            }
            | {"layer_types": ["mamba", "attention", "mamba"], "num_hidden_layers": 3, "mamba_n_groups": 2}
            | {"position_embedding_type": "nope", "mamba_conv_bias": False, "mamba_proj_bias": True},
        ),
        "granite4-dense": Model(
            architecture="GraniteMoeHybridForCausalLM",
            family="granitemoehybrid",
            config=MAMBA
            | {"num_local_experts": 0, "shared_intermediate_size": 80, "position_embedding_type": "rope"}
            | {"layer_types": ["mamba", "attention"], "tie_word_embeddings": True, "mamba_n_groups": 1},
        ),
        "bamba": Model(
            architecture="BambaForCausalLM",
            family="bamba",
            config=MAMBA | {"num_hidden_layers": 3, "attn_layer_indices": [1], "mamba_d_head": 16, "mamba_n_groups": 1},
        ),
        "falcon-h1": Model(
            architecture="FalconH1ForCausalLM",
            family="falcon_h1",
            config=MAMBA
            | {"mamba_d_ssm": 96, "mamba_d_head": 12, "mamba_n_groups": 2, "mamba_rms_norm": False}
            | {"embedding_multiplier": 5.6, "lm_head_multiplier": 0.4, "key_multiplier": 0.6}
            | {"attention_in_multiplier": 0.9, "attention_out_multiplier": 0.7}
            | {"ssm_in_multiplier": 1.25, "ssm_out_multiplier": 0.5, "ssm_multipliers": [0.6, 0.5, 0.4, 0.8, 0.7]}
            | {"mlp_multipliers": [0.88, 0.6]},
        ),
        "falcon-h1-normed": Model(
            architecture="FalconH1ForCausalLM",
            family="falcon_h1",
            config=MAMBA
            | {"mamba_d_ssm": 128, "mamba_n_groups": 1, "mamba_rms_norm": True, "mamba_norm_before_gate": False}
            | {"tie_word_embeddings": True},
        ),
        "mamba2": Model(architecture="Mamba2ForCausalLM", family="mamba2", config=MAMBA2 | {"n_groups": 2}),
        "mamba2-tied": Model(
            architecture="Mamba2ForCausalLM",
            family="mamba2",
            config=MAMBA2 | {"n_groups": 1, "use_conv_bias": False, "use_bias": True, "tie_word_embeddings": True},
        ),
        "nemotron-h": Model(
            architecture="NemotronHForCausalLM",
            family="nemotron_h",
            config=NEMOTRON_H | {"hybrid_override_pattern": "M-M*-M", "n_groups": 2, "mamba_head_dim": 12},
        ),
        "nemotron-3": Model(
            architecture="NemotronHForCausalLM",
            family="nemotron_h",
            config=NEMOTRON_H
            | {"hybrid_override_pattern": "ME*EM-M", "n_groups": 2, "mamba_head_dim": 12, "n_routed_experts": 8}
            | {"n_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "n_group": 1}
            | {"topk_group": 1, "moe_shared_expert_intermediate_size": 56, "routed_scaling_factor": 2.5}
            | {"norm_topk_prob": True},
        ),
        "nemotron-3-latent": Model(
            architecture="NemotronHForCausalLM",
            family="nemotron_h",
            config=NEMOTRON_H
            | {"hybrid_override_pattern": "ME*E", "n_groups": 2, "mamba_head_dim": 12, "n_routed_experts": 8}
            | {"n_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "moe_latent_size": 24}
            | {"moe_shared_expert_intermediate_size": 56, "routed_scaling_factor": 2.5},
        ),
        "nemotron-h-biases": Model(
            architecture="NemotronHForCausalLM",
            family="nemotron_h",
            config=NEMOTRON_H
            | {"layers_block_type": ["linear_attention", "full_attention", "mlp"], "n_groups": 1, "use_bias": True}
            | {"mlp_bias": True, "use_conv_bias": False, "tie_word_embeddings": False, "mamba_head_dim": 16},
        ),
        "ernie": Model(
            architecture="Ernie4_5ForCausalLM", family="ernie4_5", config={"use_bias": False, "head_dim": 16}
        ),
        "seed-oss": Model(
            architecture="SeedOssForCausalLM",
            family="seed_oss",
            config={"head_dim": 24, "attention_bias": True, "attention_out_bias": False, "mlp_bias": False},
        ),
        "command-r": Model(
            architecture="CohereForCausalLM",
            family="cohere",
            config=NORMS_OF_MEANS | {"layer_norm_eps": 1e-5, "logit_scale": 0.0625 * 8, "use_qk_norm": False},
        ),
        "command-r-plus": Model(
            architecture="CohereForCausalLM",
            family="cohere",
            config=NORMS_OF_MEANS | {"layer_norm_eps": 1e-5, "logit_scale": 0.5, "use_qk_norm": True},
        ),
        "command-r7b": Model(
            architecture="Cohere2ForCausalLM",
            family="cohere2",
            config=NORMS_OF_MEANS
            | {"layer_norm_eps": 1e-5, "logit_scale": 0.5, "sliding_window": 24, "sliding_window_pattern": 2},
        ),
        "starcoder2": Model(
            architecture="Starcoder2ForCausalLM",
            family="starcoder2",
            config=NORMS_OF_MEANS
            | {"norm_epsilon": 1e-5, "use_bias": True, "sliding_window": 24, "hidden_act": "gelu_pytorch_tanh"},
        ),
        "mpt": Model(
            architecture="MPTForCausalLM",
            family="mpt",
            config=NO_SIZES
            | {"d_model": 72, "n_heads": 6, "n_layers": 2, "expansion_ratio": 4, "max_seq_len": 512, "no_bias": True}
            | {"attn_config": {"alibi": True, "clip_qkv": 0.7, "softmax_scale": 0.2, "alibi_bias_max": 8}},
        ),
        "bloom": Model(
            architecture="BloomForCausalLM",
            family="bloom",
            config=NO_SIZES | {"hidden_size": 64, "n_head": 4, "n_layer": 2, "layer_norm_epsilon": 1e-5},
        ),
        "baichuan-13b": Model(
            architecture="BaichuanForCausalLM",
            family="baichuan",
            config={"num_attention_heads": 6, "hidden_size": 96, "model_max_length": 512, "normalised_head": True}
            | {"max_position_embeddings": None, "num_key_value_heads": None},
            like={"model_type": "llama", "num_key_value_heads": 6},
        ),
        "baichuan-7b": Model(
            architecture="BaiChuanForCausalLM",
            family="baichuan",
            config={"num_key_value_heads": None},
            like={"model_type": "llama", "num_key_value_heads": 4},
        ),
        "falcon-7b": Model(
            architecture="FalconForCausalLM",
            family="falcon",
            config=NORMS_OF_MEANS
            | {"intermediate_size": None, "num_key_value_heads": None, "layer_norm_epsilon": 1e-5}
            | {"multi_query": True, "parallel_attn": True, "bias": False, "alibi": False},
        ),
        "falcon-rw": Model(
            architecture="FalconForCausalLM",
            family="falcon",
            config=NORMS_OF_MEANS
            | {"intermediate_size": None, "num_key_value_heads": None, "layer_norm_epsilon": 1e-5, "alibi": True}
            | {"multi_query": False, "parallel_attn": False, "bias": True},
            attention="sdpa",
        ),
        "falcon-40b": Model(
            architecture="FalconForCausalLM",
            family="falcon",
            config=NORMS_OF_MEANS
            | {"intermediate_size": None, "num_key_value_heads": None, "layer_norm_epsilon": 1e-5}
            | {"new_decoder_architecture": True, "num_kv_heads": 2, "bias": False, "ffn_hidden_size": 96},
        ),
    }
    | MIXTURES
    | NEWER
)
