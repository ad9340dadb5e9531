"""OLMo 2 and 3, OLMoE: one norm for the queries of all heads, one for keys.

OLMo 2 and 3 have norms behind attention and feed-forward layers alone. Layers of OLMo 3 with a window have angles that
are not stretched.
"""

from dataclasses import replace
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig, RopeConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places
from kvasir_runtime.models.moe import expert_places, experts_spec
from kvasir_runtime.models.rope import rope_of, rope_spec

_THETA: Final = 500_000.0
_NAMES: Final = TensorNames(
    attention_outer_norm="post_attention_layernorm", mlp_outer_norm="post_feedforward_layernorm"
)


def _olmo2(config: ModelConfig, family: str = "olmo2") -> DecoderSpec:
    bias = config.attention_bias
    made = decoder_spec(config, family, qkv_bias=bias, output_bias=bias, qk_norm=True, rope=_rope(config))
    return replace(made, pre_norms=False, outer_norms=True, wide_qk_norm=True)


def _olmo3(config: ModelConfig) -> DecoderSpec:
    given = config.rope_parameters or RopeConfig()
    local = rope_of(config, given.sliding_attention or RopeConfig(), config.rope_theta or _THETA)
    return replace(_olmo2(config, "olmo3"), local_rope=local)


def _rope(config: ModelConfig) -> RopeSpec:
    """Of layers that see everything."""
    given = config.rope_parameters
    if given is None or given.full_attention is None:
        return rope_spec(config)
    return rope_of(config, config.rope_scaling or given.full_attention, config.rope_theta or _THETA)


def _olmoe(config: ModelConfig) -> DecoderSpec:
    if config.clip_qkv is not None:
        raise ModelError("config.json: clip_qkv of OLMoE is not supported")
    renormalised, bias = config.norm_topk_prob, config.attention_bias
    experts = experts_spec(config, intermediate_size=config.intermediate_size, renormalised=renormalised)
    made = decoder_spec(config, "olmoe", qkv_bias=bias, output_bias=bias, qk_norm=True, experts=experts)
    return replace(made, wide_qk_norm=True)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _NAMES)


def _expert_places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec) | expert_places(spec)


OLMO2 = Family(architecture="Olmo2ForCausalLM", models="OLMo 2", spec=_olmo2, places=_places)
OLMO3 = Family(architecture="Olmo3ForCausalLM", models="OLMo 3", spec=_olmo3, places=_places)
OLMOE = Family(
    architecture="OlmoeForCausalLM",
    models="OLMoE-1B-7B",
    experts="8 of 64; queries and keys of all heads have one norm each",
    spec=_olmoe,
    places=_expert_places,
)
