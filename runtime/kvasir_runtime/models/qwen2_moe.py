"""Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): Qwen2 with experts, and one more that every token goes through."""

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, usual_places
from kvasir_runtime.models.moe import expert_places, experts_spec


def _spec(config: ModelConfig) -> DecoderSpec:
    if config.use_sliding_window and config.layer_types is None:
        raise ModelError("config.json: use_sliding_window of Qwen2-MoE needs layer_types, which says where it slides")
    if config.moe_intermediate_size is None or config.shared_expert_intermediate_size is None:
        raise ModelError("config.json: Qwen2-MoE needs moe_intermediate_size and shared_expert_intermediate_size")
    experts = experts_spec(
        config,
        intermediate_size=config.moe_intermediate_size,
        renormalised=config.norm_topk_prob,
        shared_size=config.shared_expert_intermediate_size,
    )
    return decoder_spec(config, "qwen2_moe", qkv_bias=bool(config.qkv_bias), experts=experts)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec) | expert_places(spec)


QWEN2_MOE = Family(
    architecture="Qwen2MoeForCausalLM",
    models="Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B",
    experts="4 of 60 or 8 of 64, and one more that every token goes through, behind a gate",
    spec=_spec,
    places=_places,
)
