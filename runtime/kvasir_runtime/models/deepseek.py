"""DeepSeek-V2 and V3, and GLM-4.7-Flash: latent attention, experts behind the first layers, from the best groups.

V3 scores experts by sigmoids, with a bias in the choice that balances them.
"""

from dataclasses import replace
from typing import Final

import msgspec

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.layer_specs import ExpertsSpec, LatentSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, merged, usual_places, whole
from kvasir_runtime.models.moe import deepseek_experts, expert_places
from kvasir_runtime.models.mtp_names import DEEPSEEK_MTP
from kvasir_runtime.models.rope import yarn_scale

_SCORES: Final = {"greedy": "softmax", "group_limited_greedy": "softmax", "noaux_tc": "sigmoid"}
"""By the way of choosing experts."""


def _v2(config: ModelConfig) -> DecoderSpec:
    return _spec(config, "DeepSeek-V2", "deepseek_v2", _experts(config, "DeepSeek-V2", "greedy"))


def _v3(config: ModelConfig) -> DecoderSpec:
    return _spec(config, "DeepSeek-V3", "deepseek_v3", _experts(config, "DeepSeek-V3", "noaux_tc"))


def _glm(config: ModelConfig) -> DecoderSpec:
    return _spec(config, "GLM-4.7-Flash", "glm4_moe_lite", _experts(config, "GLM-4.7-Flash", "noaux_tc"))


def _spec(config: ModelConfig, name: str, family: str, experts: ExpertsSpec) -> DecoderSpec:
    rank, key_dim, value_dim = config.kv_lora_rank, config.qk_nope_head_dim, config.v_head_dim
    if rank is None or key_dim is None or value_dim is None:
        raise ModelError(f"config.json: {name} needs kv_lora_rank, qk_nope_head_dim and v_head_dim")
    if config.qk_rope_head_dim % 2:
        raise ModelError(
            f"config.json: qk_rope_head_dim {config.qk_rope_head_dim} is odd; rotary embedding needs pairs"
        )
    config = msgspec.structs.replace(config, head_dim=config.qk_rope_head_dim)
    made = decoder_spec(config, family, experts=experts)
    latent = LatentSpec(
        rank=rank,
        rope_dim=config.qk_rope_head_dim,
        key_dim=key_dim,
        value_dim=value_dim,
        query_rank=config.q_lora_rank or 0,
    )
    scale = (latent.key_dim + latent.rope_dim) ** -0.5 * yarn_scale(config) ** 2
    return replace(made, num_kv_heads=1, attention_scale=scale, latent=latent)


def _experts(config: ModelConfig, name: str, method: str) -> ExpertsSpec:
    """method: of choosing experts, where the config names none."""
    chosen = config.topk_method or method
    scores = config.scoring_func or _SCORES.get(chosen)
    for field, value, served in (
        ("topk_method", chosen, tuple(_SCORES)),
        ("scoring_func", scores, (_SCORES.get(chosen),)),
        ("norm_topk_prob", config.norm_topk_prob, (True, False) if scores == "sigmoid" else (False,)),
        ("moe_layer_freq", config.moe_layer_freq, (1,)),
        ("attention_bias", config.attention_bias, (False,)),
        ("rope_interleave", config.rope_interleave is not False, (True,)),
    ):
        if value not in served:
            expected = " or ".join(map(str, served))
            raise ModelError(f"config.json: {field} {value} of {name} is not supported; expected {expected}")
    return deepseek_experts(config, name, grouped=chosen != "greedy", sigmoid=scores == "sigmoid")


def _places(spec: DecoderSpec) -> dict[str, Place]:
    latent, hidden = spec.latent, spec.hidden_size
    assert latent is not None
    # Checkpoints turn pairs of neighbours, kernels halves: both orders of dimensions give the same scores.
    turned = (*range(0, latent.rope_dim, 2), *range(1, latent.rope_dim, 2))
    of_head = (*range(latent.key_dim), *(latent.key_dim + place for place in turned))
    of_row = (*range(latent.rank), *(latent.rank + place for place in turned))
    places = usual_places(spec) | expert_places(spec, shared="shared_experts")
    for layer in range(spec.num_layers):
        theirs, ours = f"model.layers.{layer}.self_attn.", f"layers.{layer}."
        name, rows = (
            ("q_a_proj", latent.query_rank) if latent.query_rank else ("q_proj", latent.query_rows(spec.num_heads))
        )
        first = merged(ours + "qkv", ((theirs + name, rows), (theirs + "kv_a_proj_with_mqa", latent.row)), hidden)
        orders = {theirs + "q_proj.weight": of_head, theirs + "kv_a_proj_with_mqa.weight": of_row}
        places |= {name: replace(place, head_order=orders.get(name, ())) for name, place in first.items()}
        if latent.query_rank:
            places[theirs + "q_a_layernorm.weight"] = whole(ours + "query_norm", latent.query_rank)
            up = whole(ours + "query_up.weight", latent.query_rows(spec.num_heads), latent.query_rank)
            places[theirs + "q_b_proj.weight"] = replace(up, head_order=of_head)
        places[theirs + "kv_a_layernorm.weight"] = whole(ours + "latent_norm", latent.rank)
        places[theirs + "kv_b_proj.weight"] = whole(ours + "latent_up", latent.up_rows(spec.num_heads), latent.rank)
        places |= merged(ours + "output", ((theirs + "o_proj", hidden),), spec.num_heads * latent.value_dim)
    return places


DEEPSEEK_V2 = Family(
    architecture="DeepseekV2ForCausalLM",
    models="DeepSeek-V2, V2-Lite, Coder-V2",
    experts=(
        "6 of 64 or 160 and two shared ones, behind one layer without "
        "(`first_k_dense_replace`); see [latent attention](#latent-attention)"
    ),
    spec=_v2,
    places=_places,
)
DEEPSEEK_V3 = Family(
    architecture="DeepseekV3ForCausalLM",
    models="DeepSeek-V3, V3.1, R1, Moonlight",
    experts="8 of 256, from 4 of 8 groups, and a shared one; see [latent attention](#latent-attention)",
    spec=_v3,
    places=_places,
    drafts=DEEPSEEK_MTP,
)
GLM4_MOE_LITE = Family(
    architecture="Glm4MoeLiteForCausalLM",
    models="GLM-4.7-Flash",
    experts="4 of 64 and a shared one, as of GLM-4.5; see [latent attention](#latent-attention)",
    spec=_glm,
    places=_places,
    drafts=DEEPSEEK_MTP,
)
