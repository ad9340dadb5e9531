"""Llama 2, 3 and the models of the same shape: no biases unless the config says so, full attention.

Seed-OSS has biases on queries, keys and values alone; AFM has no gate.
"""

from dataclasses import replace

from kvasir_runtime.layers.spec import Activation, DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, decoder_spec, usual_places


def _spec(config: ModelConfig, family: str = "llama", activation: Activation = "silu") -> DecoderSpec:
    bias, mlp = config.attention_bias, config.mlp_bias
    return decoder_spec(config, family, qkv_bias=bias, output_bias=bias, mlp_bias=mlp, activation=activation)


LLAMA = Family(
    architecture="LlamaForCausalLM",
    models="Llama 2, 3, 3.1 to 3.3, Yi, SmolLM2, DeepSeek-R1-Distill",
    spec=_spec,
    places=usual_places,
)


def _seed(config: ModelConfig) -> DecoderSpec:
    bias, output = config.attention_bias, bool(config.attention_out_bias)
    return decoder_spec(config, "seed_oss", qkv_bias=bias, output_bias=output, mlp_bias=config.mlp_bias)


def _afm(config: ModelConfig) -> DecoderSpec:
    return replace(_spec(config, "arcee", "relu2"), gated_mlp=False)


AFM = Family(architecture="ArceeForCausalLM", models="AFM 4.5B", spec=_afm, places=usual_places)
SEED_OSS = Family(architecture="SeedOssForCausalLM", models="Seed-OSS 36B", spec=_seed, places=usual_places)
