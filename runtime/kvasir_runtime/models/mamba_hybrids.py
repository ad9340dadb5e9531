"""Granite 4 and Bamba: most layers are Mamba-2's, the others attend.

Granite has the factors of Granite 3 and knows no positions but for those of its layers with a state, and experts beside
the shared feed-forward layer in its larger models.
"""

from dataclasses import replace
from typing import Any, Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.layer_specs import StateSpec
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, merged, usual_places, whole
from kvasir_runtime.models.granite import SHARED, granite_expert_places, granite_experts, scaled
from kvasir_runtime.models.rope import rope_spec

_ROPE, _NO_ROPE = "rope", (None, "nope")
_GRANITE: Final = TensorNames(gate_up=SHARED[0], down=SHARED[1])
_BAMBA: Final = TensorNames(
    gate="feed_forward.gate_proj",
    up="feed_forward.up_proj",
    down="feed_forward.down_proj",
    mlp_norm="pre_ff_layernorm",
    norm="model.final_layernorm",
)


def _granite(config: ModelConfig) -> DecoderSpec:
    if config.position_embedding_type not in (_ROPE, *_NO_ROPE):
        raise ModelError(f"config.json: position_embedding_type {config.position_embedding_type} is not supported")
    size, shared = config.moe_intermediate_size, config.shared_expert_intermediate_size
    experts = None
    if config.num_local_experts:
        if size is None or shared is None:
            raise ModelError("config.json: Granite 4 needs intermediate_size and shared_intermediate_size")
        experts = granite_experts(config, size)
    rope = rope_spec(config) if config.position_embedding_type == _ROPE else RopeSpec(kind="none")
    bias = config.attention_bias
    made = decoder_spec(config, "granitemoehybrid", qkv_bias=bias, output_bias=bias, experts=experts, rope=rope)
    return scaled(config, _with_state(config, made))


def _bamba(config: ModelConfig) -> DecoderSpec:
    bias = config.attention_bias
    made = decoder_spec(config, "bamba", qkv_bias=bias, output_bias=bias, mlp_bias=config.mlp_bias)
    return _with_state(config, made)


def _with_state(config: ModelConfig, spec: DecoderSpec) -> DecoderSpec:
    """The same with the state of its layers, where one has one: Granite 4 has models without."""
    has_states = any(attention.kind == "state" for attention in spec.attentions)
    return replace(spec, state=expanded_state(config)) if has_states else spec


def expanded_state(config: ModelConfig) -> StateSpec:
    """`state_spec` of heads that are mamba_expand times hidden_size wide. Raises ModelError for others too."""
    heads, dim = config.linear_num_value_heads, config.linear_value_head_dim
    if heads * dim != config.mamba_expand * config.hidden_size:
        raise ModelError(
            f"config.json: mamba_n_heads {heads} of mamba_d_head {dim} are not mamba_expand {config.mamba_expand} times"
            f" hidden_size {config.hidden_size}"
        )
    return state_spec(config)


def state_spec(config: ModelConfig) -> StateSpec:
    """Of Mamba-2, whatever the width of its heads. Raises ModelError where sizes are at odds, or steps have bounds."""
    groups, heads = config.linear_num_key_heads, config.linear_num_value_heads
    if heads % groups:
        raise ModelError(f"config.json: mamba_n_groups {groups} does not divide mamba_n_heads {heads}")
    if not _is_unbounded(config.time_step_limit):
        raise ModelError(
            f"config.json: time_step_limit {config.time_step_limit} is not supported; expected [0, Infinity]"
        )
    return StateSpec(
        key_heads=groups,
        value_heads=heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv_width=config.linear_conv_kernel_dim,
        rule="mamba2",
        conv_bias=config.mamba_conv_bias,
        bias=config.mamba_proj_bias,
    )


def _is_unbounded(limit: Any) -> bool:
    """As transformers writes it: JSON has no infinity."""
    return limit is None or limit in ([0.0, {"__float__": "Infinity"}], [0.0, "Infinity"], [0.0, float("inf")])


def mamba_places(spec: DecoderSpec, names: TensorNames, mixer: str = "mamba.") -> dict[str, Place]:
    """Of a dense decoder some of whose layers have a state. mixer: what names of those begin with in a layer."""
    places, state = usual_places(spec, names), spec.state
    if state is None:
        return places
    width, hidden = state.value_width, spec.hidden_size
    parts = (width, state.key_width, state.key_width)  # x, B, C
    for layer, attention in enumerate(spec.attentions):
        if attention.kind != "state":
            continue
        theirs, ours = names.layer.format(layer) + mixer, f"layers.{layer}."
        rows = state.parameter_shapes(hidden)["qkv.weight"][0]
        first = merged(ours + "qkv", ((theirs + "in_proj", rows),), hidden, bias=state.bias)
        sections = (width, *parts, state.value_heads)
        places |= {name: replace(place, sections=sections) for name, place in first.items()}
        places |= merged(ours + "output", ((theirs + "out_proj", hidden),), width, bias=state.bias)
        conv = replace(whole(ours + "conv", state.channels, 1, state.conv_width), sections=parts)
        places[theirs + "conv1d.weight"] = conv
        if state.conv_bias:
            places[theirs + "conv1d.bias"] = replace(whole(ours + "conv_bias", state.channels), sections=parts)
        for name, tensor in (("A_log", "decay"), ("dt_bias", "decay_bias"), ("D", "skip")):
            places[theirs + name] = whole(ours + tensor, state.value_heads)
        if state.normed:
            places[theirs + "norm.weight"] = whole(ours + "state_norm", width)
    return places


def _granite_places(spec: DecoderSpec) -> dict[str, Place]:
    return mamba_places(spec, _GRANITE) | granite_expert_places(spec)


def _bamba_places(spec: DecoderSpec) -> dict[str, Place]:
    return mamba_places(spec, _BAMBA)


GRANITE4 = Family(
    architecture="GraniteMoeHybridForCausalLM",
    models="Granite 4, Micro to Small",
    experts=(
        "6 of 64 or 10 of 72 and a shared one, in layers most of which have "
        "[a state](#layers-with-a-state); smaller models have none"
    ),
    spec=_granite,
    places=_granite_places,
)
BAMBA = Family(architecture="BambaForCausalLM", models="Bamba 9B", spec=_bamba, places=_bamba_places)
