"""Mistral: Llama's layers with the same sliding window in every layer (absent in later releases).

Ministral 3 has queries that grow behind the positions of its training.
"""

from dataclasses import replace

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, decoder_spec, usual_places
from kvasir_runtime.models.rope import growing_queries


def _spec(config: ModelConfig) -> DecoderSpec:
    return replace(decoder_spec(config, "mistral"), temperature=growing_queries(config))


MISTRAL = Family(
    architecture="MistralForCausalLM",
    models="Mistral 7B, Nemo, Small, Ministral 3",
    spec=_spec,
    places=usual_places,
    with_images="Mistral3ForConditionalGeneration",
    also="Ministral3ForCausalLM",
)
