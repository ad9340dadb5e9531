"""Qwen2 and Qwen2.5: biases on queries, keys and values only; a sliding window in the upper layers if switched on."""

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, decoder_spec, usual_places


def _spec(config: ModelConfig) -> DecoderSpec:
    return decoder_spec(config, "qwen2", qkv_bias=True)


QWEN2 = Family(
    architecture="Qwen2ForCausalLM", models="Qwen2, Qwen2.5, QwQ, gte-Qwen2", spec=_spec, places=usual_places
)
