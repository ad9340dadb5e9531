"""Configs of tiny models of families of 2025, as `family_configs` has those of others."""

from typing import Any

from fakes.family_model import Model

NTK_OF_HUNYUAN: dict[str, Any] = {"type": "dynamic", "alpha": 1000.0, "factor": 1.0}
LONG_AND_SHORT = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
NEWER = {
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
