"""Llama 2, 3 and the models of the same shape: no biases unless the config says so, full attention."""

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, decoder_spec, usual_places


def _spec(config: ModelConfig) -> DecoderSpec:
    return decoder_spec(
        config,
        "llama",
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
    )


LLAMA = Family(architecture="LlamaForCausalLM", spec=_spec, places=usual_places)
