"""Qwen3-MoE (Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder): Qwen3 with experts; a window is in all layers or none."""

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, usual_places
from kvasir_runtime.models.moe import expert_places, experts_spec


def _spec(config: ModelConfig) -> DecoderSpec:
    if config.moe_intermediate_size is None:
        raise ModelError("config.json: Qwen3-MoE needs moe_intermediate_size")
    return decoder_spec(
        config,
        "qwen3_moe",
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        qk_norm=True,
        experts=experts_spec(
            config, intermediate_size=config.moe_intermediate_size, renormalised=config.norm_topk_prob
        ),
    )


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec) | expert_places(spec)


QWEN3_MOE = Family(
    architecture="Qwen3MoeForCausalLM",
    models="Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder",
    experts="8 of 128; `norm_topk_prob`, `decoder_sparse_step` and `mlp_only_layers` are followed",
    spec=_spec,
    places=_places,
)
