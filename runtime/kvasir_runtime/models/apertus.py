"""Apertus: norms of heads, feed-forward layers without a gate, whose activation has learned numbers in each layer."""

from dataclasses import replace
from typing import Final

from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places

_NAMES: Final = TensorNames(attention_norm="attention_layernorm", mlp_norm="feedforward_layernorm")
_CURVE: Final = ("alpha_p", "alpha_n", "beta", "eps")
"""In the order of `layers.feed_forward.xielu`."""


def _spec(config: ModelConfig) -> DecoderSpec:
    bias = config.attention_bias
    made = decoder_spec(config, "apertus", qkv_bias=bias, output_bias=bias, qk_norm=True, activation="xielu")
    return replace(made, gated_mlp=False)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    places = usual_places(spec, _NAMES)
    for layer in range(spec.num_layers):
        for row, name in enumerate(_CURVE):
            place = Place(tensor=f"layers.{layer}.curve", first_row=row, shape=(1,))
            places[f"model.layers.{layer}.mlp.act_fn.{name}"] = place
    return places


APERTUS = Family(architecture="ApertusForCausalLM", models="Apertus 8B and 70B", spec=_spec, places=_places)
