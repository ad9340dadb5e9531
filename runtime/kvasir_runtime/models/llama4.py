"""Llama 4 (Scout, Maverick), its text: layers in chunks turn, every fourth sees everything and knows no positions.

Queries and keys that turn have a norm without weights, queries that do not grow with their position. What a token gives
to its experts is scaled, not what they give; a shared one has no gate.
"""

from dataclasses import replace

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.layer_specs import TemperatureSpec
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places
from kvasir_runtime.models.moe import expert_places, experts_spec
from kvasir_runtime.models.rope import rope_spec

_BLOCK = "feed_forward"
_NAMES = TensorNames(gate=f"{_BLOCK}.gate_proj", up=f"{_BLOCK}.up_proj", down=f"{_BLOCK}.down_proj")


def _spec(config: ModelConfig) -> DecoderSpec:
    size, shared = config.moe_intermediate_size, config.shared_expert_intermediate_size
    if size is None or shared is None:
        raise ModelError("config.json: Llama 4 needs intermediate_size and intermediate_size_mlp")
    experts = experts_spec(config, intermediate_size=size, renormalised=False, shared_size=shared)
    experts = replace(experts, sigmoid=True, scaled_inputs=True, shared_gate=False)
    bias = config.attention_bias
    # A norm behind the rotation takes away what that multiplies by.
    local = replace(rope_spec(config), interleaved=True)
    local = replace(local, attention_factor=1.0) if config.use_qk_norm else local
    rope = RopeSpec(kind="none", interleaved=True)
    made = decoder_spec(config, "llama4_text", qkv_bias=bias, output_bias=bias, experts=experts, rope=rope)
    turning = config.no_rope_layers or ()
    if turning and [bool(turns) for turns in turning] != [attention.span > 0 for attention in made.attentions]:
        raise ModelError("config.json: no_rope_layers of Llama 4 must be 1 where layer_types names chunked_attention")
    grown = TemperatureSpec(scale=config.attn_scale, step=config.floor_scale)
    temperature = grown if config.attn_temperature_tuning else None
    return replace(made, local_rope=local, plain_qk_norm=bool(config.use_qk_norm), temperature=temperature)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _NAMES) | expert_places(spec, block=_BLOCK, router="router", stacked=True)


LLAMA4 = Family(
    architecture="Llama4ForCausalLM",
    models="Llama 4 Scout and Maverick",
    experts="1 of 16 or 128, by a sigmoid, and a shared one; see [Llama 4](#llama-4)",
    spec=_spec,
    places=_places,
    with_images="Llama4ForConditionalGeneration",
)
