"""Mistral: Llama's layers with the same sliding window in every layer (absent in later releases)."""

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, decoder_spec, usual_places


def _spec(config: ModelConfig) -> DecoderSpec:
    return decoder_spec(config, "mistral")


MISTRAL = Family(
    architecture="MistralForCausalLM",
    models="Mistral 7B, Nemo, Small",
    spec=_spec,
    places=usual_places,
    with_images="Mistral3ForConditionalGeneration",
)
