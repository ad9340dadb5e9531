"""Qwen3-Next and Qwen3.5: Qwen3 where three layers of four have a state, and the others gate what attention gives.

Qwen3.5 has models without experts too, and its states' queries, keys, values and gates lie one below the other.
"""

from dataclasses import replace
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.layer_specs import ExpertsSpec, StateSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, merged, usual_places, whole
from kvasir_runtime.models.moe import expert_places, experts_spec
from kvasir_runtime.models.mtp_names import MtpNames

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


def _next(config: ModelConfig) -> DecoderSpec:
    return _spec(config, "qwen3_next", _experts(config, "Qwen3-Next"), by_key_head=True)


def _dense(config: ModelConfig) -> DecoderSpec:
    return _spec(config, "qwen3_5_text", None, by_key_head=False)


def _sparse(config: ModelConfig) -> DecoderSpec:
    return _spec(config, "qwen3_5_moe_text", _experts(config, "Qwen3.5"), by_key_head=False)


def _experts(config: ModelConfig, name: str) -> ExpertsSpec:
    size, shared_size = config.moe_intermediate_size, config.shared_expert_intermediate_size
    if size is None or shared_size is None:
        raise ModelError(f"config.json: {name} needs moe_intermediate_size and shared_expert_intermediate_size")
    renormalised = config.norm_topk_prob
    return experts_spec(config, intermediate_size=size, renormalised=renormalised, shared_size=shared_size)


def _spec(config: ModelConfig, family: str, experts: ExpertsSpec | None, *, by_key_head: bool) -> DecoderSpec:
    if config.linear_num_value_heads % config.linear_num_key_heads:
        raise ModelError(
            f"config.json: linear_num_key_heads {config.linear_num_key_heads} does not divide"
            f" linear_num_value_heads {config.linear_num_value_heads}"
        )
    bias = config.attention_bias
    made = decoder_spec(config, family, qkv_bias=bias, output_bias=bias, qk_norm=True, experts=experts)
    state = StateSpec(
        key_heads=config.linear_num_key_heads,
        value_heads=config.linear_num_value_heads,
        key_dim=config.linear_key_head_dim,
        value_dim=config.linear_value_head_dim,
        conv_width=config.linear_conv_kernel_dim,
        by_key_head=by_key_head,
    )
    return replace(made, norms_less_one=True, gated_attention=True, state=state)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    places, state = usual_places(spec) | expert_places(spec), spec.state
    for layer, attention in enumerate(spec.attentions):
        if attention.kind != "state":
            continue
        assert state is not None
        theirs, ours = f"model.layers.{layer}.linear_attn.", f"layers.{layer}."
        places |= _projections(state, theirs, ours, spec.hidden_size)
        places |= merged(ours + "output", ((theirs + "out_proj", spec.hidden_size),), state.value_width)
        conv = whole(ours + "conv", state.channels, 1, state.conv_width)
        places[theirs + "conv1d.weight"] = replace(conv, sections=_parts(state))
        places[theirs + "A_log"] = whole(ours + "decay", state.value_heads)
        places[theirs + "dt_bias"] = whole(ours + "decay_bias", state.value_heads)
        places[theirs + "norm.weight"] = whole(ours + "state_norm", state.value_dim)
    return places


def _projections(state: StateSpec, theirs: str, ours: str, hidden: int) -> dict[str, Place]:
    """Of the first projection of a layer with a state."""
    values, heads = state.value_width, state.value_heads
    if state.by_key_head:
        rows = ((theirs + "in_proj_qkvz", state.channels + values), (theirs + "in_proj_ba", 2 * heads))
        return merged(ours + "qkv", rows, hidden)
    named = (("qkv", state.channels), ("z", values), ("b", heads), ("a", heads))
    places = merged(ours + "qkv", tuple((f"{theirs}in_proj_{name}", rows) for name, rows in named), hidden)
    mixed = theirs + "in_proj_qkv.weight"
    return places | {mixed: replace(places[mixed], sections=_parts(state))}


def _parts(state: StateSpec) -> tuple[int, int, int]:
    """Rows of queries, keys and values of all heads."""
    return state.key_width, state.key_width, state.value_width


QWEN3_NEXT = Family(
    architecture="Qwen3NextForCausalLM",
    models="Qwen3-Next-80B-A3B",
    experts="10 of 512 and a shared one; see [layers with a state](#layers-with-a-state)",
    spec=_next,
    places=_places,
    drafts=_MTP,
)
QWEN3_5 = Family(
    architecture="Qwen3_5ForCausalLM",
    models="Qwen3.5-9B, 27B",
    spec=_dense,
    places=_places,
    with_images="Qwen3_5ForConditionalGeneration",
    drafts=_MTP,
)
QWEN3_5_MOE = Family(
    architecture="Qwen3_5MoeForCausalLM",
    models="Qwen3.5-35B-A3B, 397B-A17B",
    experts="8 of 256 and a shared one; see [layers with a state](#layers-with-a-state)",
    spec=_sparse,
    places=_places,
    with_images="Qwen3_5MoeForConditionalGeneration",
    drafts=_MTP,
)
