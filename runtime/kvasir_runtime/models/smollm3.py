"""SmolLM3: Llama's layers, of which every fourth does not turn."""

from dataclasses import replace

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, decoder_spec, usual_places


def _spec(config: ModelConfig) -> DecoderSpec:
    bias, turning = config.attention_bias, config.no_rope_layers or ()
    if len(turning) != config.num_hidden_layers:
        raise ModelError(f"config.json: no_rope_layers must name 0 or 1 for each of {config.num_hidden_layers} layers")
    made = decoder_spec(config, "smollm3", qkv_bias=bias, output_bias=bias, mlp_bias=config.mlp_bias)
    fixed = frozenset(layer for layer, turns in enumerate(turning) if not turns)
    return replace(made, local_rope=RopeSpec(kind="none", rotary_dim=made.rope.rotary_dim), local_layers=fixed)


SMOLLM3 = Family(architecture="SmolLM3ForCausalLM", models="SmolLM3 3B", spec=_spec, places=usual_places)
