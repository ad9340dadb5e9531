"""Qwen3-Next: Qwen3-MoE where three layers of four have a state, and the others gate what attention gives."""

from dataclasses import replace
from typing import Final

import msgspec

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.layer_specs import StateSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, merged, usual_places, whole
from kvasir_runtime.models.moe import expert_places, experts_spec
from kvasir_runtime.models.mtp_names import MtpNames

_ROTATED: Final = 0.25
"""Share of each head that turns, of a config that names none."""
_MTP: Final = MtpNames(
    layer="mtp.layers.{}.",
    first=0,
    norm="mtp.norm",
    embedding_norm="mtp.pre_fc_norm_embedding",
    hidden_norm="mtp.pre_fc_norm_hidden",
    fuse="mtp.fc",
    copies=(),
    reads_normed=True,
)


def _spec(config: ModelConfig) -> DecoderSpec:
    size, shared_size = config.moe_intermediate_size, config.shared_expert_intermediate_size
    if size is None or shared_size is None:
        raise ModelError("config.json: Qwen3-Next needs moe_intermediate_size and shared_expert_intermediate_size")
    if config.linear_num_value_heads % config.linear_num_key_heads:
        raise ModelError(
            f"config.json: linear_num_key_heads {config.linear_num_key_heads} does not divide"
            f" linear_num_value_heads {config.linear_num_value_heads}"
        )
    if config.partial_rotary_factor is None:
        config = msgspec.structs.replace(config, partial_rotary_factor=_ROTATED)
    renormalised = config.norm_topk_prob
    experts = experts_spec(config, intermediate_size=size, renormalised=renormalised, shared_size=shared_size)
    bias = config.attention_bias
    made = decoder_spec(config, "qwen3_next", qkv_bias=bias, output_bias=bias, qk_norm=True, experts=experts)
    state = StateSpec(
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv_width=config.linear_conv_kernel_dim,
    )
    return replace(made, norms_less_one=True, gated_attention=True, state=state)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    places, state = usual_places(spec) | expert_places(spec), spec.state
    for layer, attention in enumerate(spec.attentions):
        if attention.kind != "state":
            continue
        assert state is not None
        theirs, ours = f"model.layers.{layer}.linear_attn.", f"layers.{layer}."
        rows = (
            (theirs + "in_proj_qkvz", state.channels + state.value_width),
            (theirs + "in_proj_ba", 2 * state.value_heads),
        )
        places |= merged(ours + "qkv", rows, spec.hidden_size)
        places |= merged(ours + "output", ((theirs + "out_proj", spec.hidden_size),), state.value_width)
        conv = whole(ours + "conv", state.channels, 1, state.conv_width)
        places[theirs + "conv1d.weight"] = replace(conv, sections=(state.key_width, state.key_width, state.value_width))
        places[theirs + "A_log"] = whole(ours + "decay", state.value_heads)
        places[theirs + "dt_bias"] = whole(ours + "decay_bias", state.value_heads)
        places[theirs + "norm.weight"] = whole(ours + "state_norm", state.value_dim)
    return places


QWEN3_NEXT = Family(
    architecture="Qwen3NextForCausalLM", models="Qwen3-Next-80B-A3B", spec=_spec, places=_places, drafts=_MTP
)
