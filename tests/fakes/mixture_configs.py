"""Configs of tiny models with experts, as `family_configs` has those of others."""

from typing import Any

from fakes.family_model import Model

YARN_OF_DEEPSEEK = {"type": "yarn", "factor": 40, "original_max_position_embeddings": 128}
YARN_OF_DEEPSEEK |= {"beta_fast": 32, "beta_slow": 1}
LONGROPE_OF_PHIMOE: dict[str, Any] = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0],
    "long_factor": [1.0] * 8,
    "short_mscale": 1.25,
    "long_mscale": 1.25,
    "original_max_position_embeddings": 512,
}
LATENTS: dict[str, Any] = {
    "num_key_value_heads": 4,
    "num_hidden_layers": 3,
    "kv_lora_rank": 24,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "num_experts_per_tok": 3,
    "n_group": 4,
    "topk_group": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "rms_norm_eps": 1e-6,
}
ONE_FREQUENCY = {"low_freq_factor": 1.0, "high_freq_factor": 1.0, "original_max_position_embeddings": 64}
LLAMA4: dict[str, Any] = {
    "num_hidden_layers": 4,
    "head_dim": 24,
    "intermediate_size": 48,
    "intermediate_size_mlp": 96,
    "num_local_experts": 4,
    "attention_chunk_size": 24,
    "no_rope_layer_interval": 2,
    "attn_temperature_tuning": True,
    "floor_scale": 16,
    "attn_scale": 0.3,
}
MIXTURES = {
    "phi3.5-moe": Model(
        architecture="PhiMoEForCausalLM",
        family="phimoe",
        config={"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 32, "sliding_window": 24}
        | {"attention_bias": True, "lm_head_bias": True, "router_jitter_noise": 0.3, "head_dim": 16}
        | {"rope_scaling": LONGROPE_OF_PHIMOE, "tie_word_embeddings": False},
    ),
    "olmoe": Model(
        architecture="OlmoeForCausalLM",
        family="olmoe",
        config={"num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": False},
    ),
    "gpt-oss": Model(
        architecture="GptOssForCausalLM",
        family="gpt_oss",
        config={
            "head_dim": 24,
            "num_local_experts": 5,
            "num_experts_per_tok": 2,
            "sliding_window": 24,
            "layer_types": ["sliding_attention", "full_attention"],
            "attention_bias": True,
            "swiglu_limit": 7.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "deepseek-v3": Model(
        architecture="DeepseekV3ForCausalLM",
        family="deepseek_v3",
        config=LATENTS
        | {"q_lora_rank": 20, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True}
        | {"num_nextn_predict_layers": 1}
        | {"rope_scaling": YARN_OF_DEEPSEEK | {"mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "moonlight": Model(
        architecture="DeepseekV3ForCausalLM",
        family="deepseek_v3",
        config=LATENTS
        | {"q_lora_rank": None, "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": False}
        | {"n_group": 1, "topk_group": 1},
    ),
    "deepseek-v2": Model(
        architecture="DeepseekV2ForCausalLM",
        family="deepseek_v2",
        config=LATENTS
        | {"q_lora_rank": 20, "topk_method": "group_limited_greedy", "norm_topk_prob": False}
        | {"rope_scaling": YARN_OF_DEEPSEEK | {"mscale": 0.707, "mscale_all_dim": 0.707}},
    ),
    "glm4-moe": Model(
        architecture="Glm4MoeForCausalLM",
        family="glm4_moe",
        config={"num_hidden_layers": 3, "head_dim": 24, "n_routed_experts": 8, "n_shared_experts": 1}
        | {"num_experts_per_tok": 3, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 1}
        | {"topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.5, "use_qk_norm": True}
        | {"attention_bias": True, "num_nextn_predict_layers": 1, "partial_rotary_factor": 0.5},
    ),
    "llama4": Model(
        architecture="Llama4ForCausalLM",
        family="llama4_text",
        config=LLAMA4
        | {"num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "use_qk_norm": True}
        | {"rope_scaling": {"rope_type": "llama3", "factor": 16.0} | ONE_FREQUENCY}
        | {"rope_theta": 500000.0},
    ),
    "llama4-two-experts": Model(
        architecture="Llama4ForCausalLM",
        family="llama4_text",
        config=LLAMA4
        | {"num_experts_per_tok": 2, "moe_layers": [0, 2], "use_qk_norm": False, "no_rope_layers": [0, 1, 1]}
        | {"num_hidden_layers": 3, "layer_types": ["full_attention"] + ["chunked_attention"] * 2},
    ),
    "granite-moe": Model(
        architecture="GraniteMoeForCausalLM",
        family="granitemoe",
        config={"num_local_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 32, "logits_scaling": 2.0}
        | {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1},
    ),
    "granite-moe-shared": Model(
        architecture="GraniteMoeSharedForCausalLM",
        family="granitemoeshared",
        config={"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32, "logits_scaling": 2.0}
        | {"shared_intermediate_size": 48, "attention_bias": True, "tie_word_embeddings": True},
    ),
}
