"""dots.llm1, Solar Open and MiniMax-M2: attention of other families, experts by sigmoids and a bias of the choice."""

from dataclasses import replace

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, usual_places
from kvasir_runtime.models.moe import deepseek_experts, expert_places, experts_spec


def _dots(config: ModelConfig) -> DecoderSpec:
    experts, bias = deepseek_experts(config, "dots.llm1", grouped=True, sigmoid=True), config.attention_bias
    return decoder_spec(config, "dots1", qkv_bias=bias, output_bias=bias, qk_norm=True, experts=experts)


def _solar(config: ModelConfig) -> DecoderSpec:
    experts = deepseek_experts(config, "Solar Open", grouped=True, sigmoid=True)
    return decoder_spec(config, "solar_open", qkv_bias=config.attention_bias, experts=experts)


def _minimax(config: ModelConfig) -> DecoderSpec:
    experts = experts_spec(config, intermediate_size=config.intermediate_size, renormalised=True)
    experts = replace(experts, sigmoid=True, choice_bias=True)
    return replace(decoder_spec(config, "minimax_m2", qk_norm=True, experts=experts), wide_qk_norm=True)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec) | expert_places(spec, shared="shared_experts")


def _minimax_places(spec: DecoderSpec) -> dict[str, Place]:
    block, names = "block_sparse_moe", ("w1", "w3", "w2")
    return usual_places(spec) | expert_places(spec, block=block, choice="e_score_correction_bias", names=names)


DOTS1 = Family(
    architecture="Dots1ForCausalLM",
    models="dots.llm1",
    experts="6 of 128 and two shared ones, as of GLM-4.5",
    spec=_dots,
    places=_places,
)
SOLAR_OPEN = Family(
    architecture="SolarOpenForCausalLM",
    models="Solar Open 100B",
    experts="8 of 128 and a shared one, as of GLM-4.5, in all layers",
    spec=_solar,
    places=_places,
)
MINIMAX_M2 = Family(
    architecture="MiniMaxM2ForCausalLM",
    models="MiniMax-M2, M2.1",
    experts=(
        "8 of 256, by sigmoids with a bias of the choice; queries and keys of all heads have one norm each, "
        "so that ranks cannot divide them, but stages can"
    ),
    spec=_minimax,
    places=_minimax_places,
)
