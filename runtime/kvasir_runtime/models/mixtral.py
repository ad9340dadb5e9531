"""Mixtral: Mistral with experts in every layer, whose shares are a softmax of the chosen ones' logits."""

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, usual_places
from kvasir_runtime.models.moe import expert_places, experts_spec


def _spec(config: ModelConfig) -> DecoderSpec:
    return decoder_spec(
        config,
        "mixtral",
        experts=experts_spec(config, intermediate_size=config.intermediate_size, renormalised=True),
    )


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec) | expert_places(spec, block="block_sparse_moe", names=("w1", "w3", "w2"))


MIXTRAL = Family(
    architecture="MixtralForCausalLM",
    models="Mixtral 8x7B, 8x22B",
    experts="2 of 8; shares are a softmax of the chosen ones' logits",
    spec=_spec,
    places=_places,
)
