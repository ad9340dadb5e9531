"""Phi-3.5-MoE: norms of the mean too, biases, and two experts that a sparse mixer chooses. The head may have a bias."""

from dataclasses import replace
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig, RopeConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, usual_places
from kvasir_runtime.models.moe import expert_places, experts_spec
from kvasir_runtime.models.rope import rope_spec

_CHOSEN: Final = 2


def _spec(config: ModelConfig) -> DecoderSpec:
    experts, bias = (
        experts_spec(config, intermediate_size=config.intermediate_size, renormalised=False),
        config.attention_bias,
    )
    if experts.top_k != _CHOSEN:
        raise ModelError(
            f"config.json: num_experts_per_tok {experts.top_k} of Phi-3.5-MoE is not supported; expected {_CHOSEN}"
        )
    experts = replace(experts, mixer=config.router_jitter_noise)
    scaling = config.rope_scaling or config.rope_parameters or RopeConfig()
    if scaling.short_mscale != scaling.long_mscale:
        raise ModelError("config.json: short_mscale other than long_mscale (rope_scaling) is not supported")
    rope = rope_spec(config)
    rope = replace(rope, attention_factor=scaling.long_mscale) if scaling.long_mscale else rope
    made = decoder_spec(config, "phimoe", qkv_bias=bias, output_bias=bias, experts=experts, rope=rope)
    return replace(made, norm="layer", norm_bias=True, head_bias=config.lm_head_bias and made.head == "vocabulary")


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec) | expert_places(spec, block="block_sparse_moe", names=("w1", "w3", "w2"))


PHIMOE = Family(
    architecture="PhiMoEForCausalLM",
    also="PhimoeForCausalLM",
    models="Phi-3.5-MoE, Phi-mini-MoE, Phi-tiny-MoE",
    experts=(
        "2 of 16 by a sparse mixer: the share of each is a softmax over those whose logit is near its own "
        "(`router_jitter_noise`), for the second without the first; norms of the mean too, biases, one of the "
        "head besides"
    ),
    spec=_spec,
    places=_places,
)
