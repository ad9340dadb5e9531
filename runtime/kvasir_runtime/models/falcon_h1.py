"""Falcon-H1: attention and Mamba-2 side by side in each layer, and factors of nearly every part.

`kvasir_api.falcon_h1` makes two layers of each: the state, and the attention joined to it.
"""

from dataclasses import replace
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.layer_specs import PartScales, StateSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec
from kvasir_runtime.models.mamba_hybrids import mamba_places, state_spec

_LAYER: Final = "model.layers."
_NAMES: Final = TensorNames(
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    mlp_norm="pre_ff_layernorm",
    norm="model.final_layernorm",
)


def _spec(config: ModelConfig) -> DecoderSpec:
    made = decoder_spec(config, "falcon_h1", mlp_bias=config.mlp_bias)
    joined, bare = frozenset(config.joined_layers or ()), frozenset(config.bare_layers or ())
    states = {layer for layer, attention in enumerate(made.attentions) if attention.kind == "state"}
    if joined != set(range(1, made.num_layers, 2)) or bare != states or states & joined:
        raise ModelError(
            "config.json: every second layer of Falcon-H1 is joined to the one before it, which is a state"
        )
    gate, down = config.mlp_multipliers or (1.0, 1.0)
    entering = config.attention_in_multiplier
    return replace(
        made,
        joined=joined,
        bare=bare,
        state=_state(config),
        embedding_scale=config.embedding_multiplier or 1.0,
        attention_scale=made.head_dim**-0.5 * entering**2 * config.key_multiplier,  # of queries and of keys
        logit_scale=config.lm_head_multiplier,
        part_scales=PartScales(
            attention=entering * config.attention_out_multiplier, state=config.ssm_out_multiplier, gate=gate, down=down
        ),
    )


def _state(config: ModelConfig) -> StateSpec:
    """Raises ModelError for biases of the projections, which factors would change, and for a norm before the gate."""
    biases = ("attention_bias", "mamba_proj_bias", "projectors_bias")
    if given := next((name for name in biases if getattr(config, name)), ""):
        raise ModelError(f"config.json: {given} True of Falcon-H1 is not supported; expected False")
    if config.mamba_rms_norm and config.mamba_norm_before_gate:
        raise ModelError(
            "config.json: mamba_norm_before_gate True with mamba_rms_norm True is not supported; expected False"
        )
    heads, dim, width = config.linear_num_value_heads, config.linear_value_head_dim, config.mamba_d_ssm
    if heads * dim != width:
        raise ModelError(f"config.json: mamba_n_heads {heads} of mamba_d_head {dim} are not mamba_d_ssm {width}")
    scales = tuple(config.ssm_in_multiplier * one for one in config.ssm_multipliers or (1.0,) * 5)
    row_scales = () if all(scale == 1 for scale in scales) else scales
    return replace(state_spec(config), normed=config.mamba_rms_norm, row_scales=row_scales)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    """Under the numbers of a checkpoint, whose layers are two of ours each."""
    return {_numbered(name): place for name, place in mamba_places(spec, _NAMES).items()}


def _numbered(name: str) -> str:
    if not name.startswith(_LAYER):
        return name
    layer, _, part = name.removeprefix(_LAYER).partition(".")
    return f"{_LAYER}{int(layer) // 2}.{part}"


FALCON_H1 = Family(
    architecture="FalconH1ForCausalLM", models="Falcon-H1, 0.5B to 34B, Falcon-H1-Tiny", spec=_spec, places=_places
)
