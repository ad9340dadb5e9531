"""Hunyuan V1: norms of heads behind the rotation; the larger models have experts beside a shared one in all layers."""

from dataclasses import replace
from typing import Final

from kvasir_runtime.layers.layer_specs import ExpertsSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places
from kvasir_runtime.models.moe import expert_places, experts_spec
from kvasir_runtime.models.rope import rope_spec

_NAMES: Final = TensorNames(query_norm="self_attn.query_layernorm", key_norm="self_attn.key_layernorm")


def _dense(config: ModelConfig, family: str = "hunyuan_v1_dense", experts: ExpertsSpec | None = None) -> DecoderSpec:
    bias = config.attention_bias
    rope = replace(rope_spec(config), attention_factor=1.0)  # the norms behind it take it away
    made = decoder_spec(config, family, qkv_bias=bias, output_bias=bias, qk_norm=True, rope=rope, experts=experts)
    return replace(made, norm_behind_rope=True)


def _moe(config: ModelConfig) -> DecoderSpec:
    size = config.intermediate_size
    experts = experts_spec(config, intermediate_size=size, renormalised=True, shared_size=size)
    return _dense(config, "hunyuan_v1_moe", replace(experts, shared_gate=False))


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _NAMES)


def _expert_places(spec: DecoderSpec) -> dict[str, Place]:
    return _places(spec) | expert_places(spec, router="gate.wg", shared="shared_mlp")


HUNYUAN = Family(
    architecture="HunYuanDenseV1ForCausalLM", models="Hunyuan 0.5B to 7B, Hunyuan-MT", spec=_dense, places=_places
)
HUNYUAN_MOE = Family(
    architecture="HunYuanMoEV1ForCausalLM",
    models="Hunyuan-A13B",
    experts="8 of 64 and a shared one, all as wide as `intermediate_size`",
    spec=_moe,
    places=_expert_places,
)
