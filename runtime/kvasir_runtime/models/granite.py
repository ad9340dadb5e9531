"""Granite 3 and 4 (dense): Llama with factors of embeddings, residuals, scores and logits."""

from dataclasses import replace

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, decoder_spec, usual_places


def _spec(config: ModelConfig) -> DecoderSpec:
    bias = config.attention_bias
    return scaled(config, decoder_spec(config, "granite", qkv_bias=bias, output_bias=bias, mlp_bias=config.mlp_bias))


def scaled(config: ModelConfig, spec: DecoderSpec) -> DecoderSpec:
    """The same with the factors of a config."""
    return replace(
        spec,
        embedding_scale=config.embedding_multiplier or 1.0,
        residual_scale=config.residual_multiplier or 1.0,
        attention_scale=config.attention_multiplier or 1.0,
        logit_scale=1 / (config.logits_scaling or 1.0),
    )


GRANITE = Family(architecture="GraniteForCausalLM", models="Granite 3", spec=_spec, places=usual_places)
