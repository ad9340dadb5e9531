"""StarCoder 2: norms of the mean too, biases everywhere, feed-forward layers without a gate, perhaps a window."""

from dataclasses import replace
from typing import Final

import msgspec

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places

_NAMES: Final = TensorNames(up="mlp.c_fc", down="mlp.c_proj")


def _spec(config: ModelConfig) -> DecoderSpec:
    bias = bool(config.use_bias)
    usual = msgspec.structs.replace(config, hidden_activation=config.hidden_act)
    made = decoder_spec(
        usual, "starcoder2", qkv_bias=bias, output_bias=bias, mlp_bias=bias, activation="gelu", tied=True
    )
    return replace(made, norm="layer", norm_bias=True, gated_mlp=False)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _NAMES)


STARCODER2 = Family(architecture="Starcoder2ForCausalLM", models="StarCoder 2", spec=_spec, places=_places)
