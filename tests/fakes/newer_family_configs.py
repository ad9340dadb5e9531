"""Configs of tiny models of families of 2025, as `family_configs` has those of others."""

from typing import Any

from fakes.family_model import Model

NTK_OF_HUNYUAN: dict[str, Any] = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
LONG_AND_SHORT = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
DELTAS: dict[str, Any] = {"num_hidden_layers": 3, "head_dim": 24, "rope_theta": None, "linear_conv_kernel_dim": 4}
DELTAS |= {"linear_key_head_dim": 16, "linear_value_head_dim": 12, "linear_num_key_heads": 2}
DELTAS |= {"linear_num_value_heads": 4, "full_attention_interval": 2}
ROPE_OF_QWEN3_5 = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
ROPE_OF_QWEN3_5 |= {"mrope_section": [2, 2, 2], "mrope_interleaved": True}
NEWER = {
    "qwen3.5": Model(
        architecture="Qwen3_5ForCausalLM",
        family="qwen3_5_text",
        config=DELTAS | {"rope_parameters": ROPE_OF_QWEN3_5, "tie_word_embeddings": True},
    ),
    "qwen3.5-moe": Model(
        architecture="Qwen3_5MoeForCausalLM",
        family="qwen3_5_moe_text",
        config=DELTAS
        | {"rope_parameters": ROPE_OF_QWEN3_5, "num_experts": 6, "num_experts_per_tok": 2, "intermediate_size": None}
        | {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 48},
    ),
    "glm-flash": Model(
        architecture="Glm4MoeLiteForCausalLM",
        family="glm4_moe_lite",
        config={"num_hidden_layers": 3, "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 24}
        | {"qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8, "n_group": 1}
        | {"n_shared_experts": 1, "num_experts_per_tok": 3, "topk_group": 1, "moe_intermediate_size": 32}
        | {"norm_topk_prob": True, "routed_scaling_factor": 1.8, "topk_method": "noaux_tc"}
        | {"mlp_layer_types": ["dense", "sparse", "sparse"], "num_nextn_predict_layers": 1},
    ),
    "exaone4": Model(
        architecture="Exaone4ForCausalLM",
        family="exaone4",
        config={"head_dim": 24, "sliding_window": 24, "sliding_window_pattern": 2, "rope_theta": 1e6}
        | {"layer_types": ["sliding_attention", "full_attention"], "tie_word_embeddings": False}
        | {"rope_scaling": {"rope_type": "llama3", "factor": 16.0} | LONG_AND_SHORT},
    ),
    "exaone4-full": Model(
        architecture="Exaone4ForCausalLM",
        family="exaone4",
        config={"sliding_window": None, "layer_types": ["full_attention"] * 2, "tie_word_embeddings": True},
    ),
    "smollm3": Model(
        architecture="SmolLM3ForCausalLM",
        family="smollm3",
        config={"num_hidden_layers": 3, "no_rope_layers": [1, 0, 1], "rope_theta": 2e6},
    ),
    "smollm3-windows": Model(
        architecture="SmolLM3ForCausalLM",
        family="smollm3",
        config={"no_rope_layer_interval": 2, "use_sliding_window": True, "sliding_window": 24}
        | {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    ),
    "afm": Model(
        architecture="ArceeForCausalLM",
        family="arcee",
        config={"hidden_act": "relu2", "head_dim": 24}
        | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}},
    ),
    "hunyuan": Model(
        architecture="HunYuanDenseV1ForCausalLM",
        family="hunyuan_v1_dense",
        config={"head_dim": 24, "tie_word_embeddings": True, "rope_scaling": NTK_OF_HUNYUAN},
    ),
    "hunyuan-moe": Model(
        architecture="HunYuanMoEV1ForCausalLM",
        family="hunyuan_v1_moe",
        config={"head_dim": 24, "num_experts": 4, "moe_topk": [2, 2], "moe_intermediate_size": [96, 96]}
        | {"attention_bias": True, "rope_scaling": NTK_OF_HUNYUAN},
    ),
    "dots1": Model(
        architecture="Dots1ForCausalLM",
        family="dots1",
        config={"num_hidden_layers": 3, "head_dim": 24, "n_routed_experts": 8, "n_shared_experts": 2}
        | {"num_experts_per_tok": 3, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_group": 1}
        | {"topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "sliding_window": 24}
        | {"max_window_layers": 2},
    ),
    "solar-open": Model(
        architecture="SolarOpenForCausalLM",
        family="solar_open",
        config={"head_dim": 24, "n_routed_experts": 8, "n_shared_experts": 1, "num_experts_per_tok": 3}
        | {"moe_intermediate_size": 32, "intermediate_size": None, "n_group": 1, "topk_group": 1}
        | {"norm_topk_prob": True, "routed_scaling_factor": 1.5, "attention_bias": True},
    ),
    "minimax-m2": Model(
        architecture="MiniMaxM2ForCausalLM",
        family="minimax_m2",
        config={"head_dim": 24, "rotary_dim": 12, "num_local_experts": 8, "num_experts_per_tok": 3}
        | {"intermediate_size": 32, "scoring_func": "sigmoid", "use_routing_bias": True, "tie_word_embeddings": False},
    ),
    "ernie-moe": Model(
        architecture="Ernie4_5_MoeForCausalLM",
        family="ernie4_5_moe",
        config={"num_hidden_layers": 3, "moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32}
        | {"moe_num_shared_experts": 2, "moe_layer_start_index": 1, "moe_layer_interval": 1, "use_bias": False},
    ),
    "apertus": Model(
        architecture="ApertusForCausalLM",
        family="apertus",
        config={"hidden_act": "xielu", "head_dim": 24, "rope_theta": 12e6}
        | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0} | LONG_AND_SHORT},
    ),
}
