"""DeepSeek-V2 with plain routing (V2-Lite, Coder-V2-Lite): latent attention, experts behind the first layers."""

from dataclasses import replace

import msgspec

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec, ExpertsSpec, LatentSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, merged, usual_places, whole
from kvasir_runtime.models.moe import expert_places, experts_spec
from kvasir_runtime.models.rope import yarn_scale


def _spec(config: ModelConfig) -> DecoderSpec:
    rank, key_dim, value_dim = config.kv_lora_rank, config.qk_nope_head_dim, config.v_head_dim
    if rank is None or key_dim is None or value_dim is None:
        raise ModelError("config.json: DeepSeek-V2 needs kv_lora_rank, qk_nope_head_dim and v_head_dim")
    if config.qk_rope_head_dim % 2:
        raise ModelError(
            f"config.json: qk_rope_head_dim {config.qk_rope_head_dim} is odd; rotary embedding needs pairs"
        )
    config = msgspec.structs.replace(config, head_dim=config.qk_rope_head_dim)
    made = decoder_spec(config, "deepseek_v2", experts=_experts(config))
    latent = LatentSpec(
        rank=rank,
        rope_dim=config.qk_rope_head_dim,
        key_dim=key_dim,
        value_dim=value_dim,
        query_rank=config.q_lora_rank or 0,
    )
    scale = (latent.key_dim + latent.rope_dim) ** -0.5 * yarn_scale(config) ** 2
    return replace(made, num_kv_heads=1, attention_scale=scale, latent=latent)


def _experts(config: ModelConfig) -> ExpertsSpec:
    for field, value, served in (
        ("topk_method", config.topk_method, "greedy"),
        ("scoring_func", config.scoring_func, "softmax"),
        ("norm_topk_prob", config.norm_topk_prob, False),
        ("moe_layer_freq", config.moe_layer_freq, 1),
        ("attention_bias", config.attention_bias, False),
    ):
        if value != served:
            raise ModelError(f"config.json: {field} {value} of DeepSeek-V2 is not supported; expected {served}")
    if config.moe_intermediate_size is None:
        raise ModelError("config.json: DeepSeek-V2 needs moe_intermediate_size")
    size, dense = config.moe_intermediate_size, tuple(range(config.first_k_dense_replace))
    usual = msgspec.structs.replace(config, num_experts=config.n_routed_experts, mlp_only_layers=dense)
    made = experts_spec(
        usual, intermediate_size=size, renormalised=False, shared_size=size * (config.n_shared_experts or 0)
    )
    return replace(made, shared_gate=False, scale=config.routed_scaling_factor)


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


DEEPSEEK_V2 = Family(architecture="DeepseekV2ForCausalLM", spec=_spec, places=_places)
