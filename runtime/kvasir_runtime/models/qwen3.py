"""Qwen3 (dense): Qwen2 without biases, with a norm on each head of queries and keys."""

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, decoder_spec, usual_places


def _spec(config: ModelConfig) -> DecoderSpec:
    return decoder_spec(
        config,
        "qwen3",
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        qk_norm=True,
    )


QWEN3 = Family(architecture="Qwen3ForCausalLM", models="Qwen3", spec=_spec, places=usual_places)
