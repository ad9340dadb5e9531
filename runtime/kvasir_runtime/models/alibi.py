"""Families whose scores lose with the distance, in place of rotary embedding (ALiBi): MPT, BLOOM and Baichuan 13B.
Falcon-RW is one of `falcon`.

Baichuan has Llama's layers, with queries, keys and values in one matrix; its models of 7B turn.
"""

import math
from dataclasses import replace
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places

_NOT_TURNED: Final = RopeSpec(kind="none")
_MPT: Final = TensorNames(
    embedding="transformer.wte",
    layer="transformer.blocks.{}.",
    qkv="attn.Wqkv",
    output="attn.out_proj",
    up="ffn.up_proj",
    down="ffn.down_proj",
    attention_norm="norm_1",
    mlp_norm="norm_2",
    norm="transformer.norm_f",
)
_BLOOM: Final = TensorNames(
    embedding="transformer.word_embeddings",
    embedding_norm="transformer.word_embeddings_layernorm",
    layer="transformer.h.{}.",
    qkv="self_attention.query_key_value",
    by_group=True,
    output="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    norm="transformer.ln_f",
)
_BAICHUAN: Final = TensorNames(qkv="self_attn.W_pack")


def slopes(heads: int, largest: float = 8.0) -> tuple[float, ...]:
    """Of each head, powers of 2 from -largest / heads to -largest (Press et al. 2022).

    Of other than a power of two of heads: those of the next smaller one, then every second of the next larger one.
    """
    power = 1 << math.ceil(math.log2(heads))
    every = [2.0 ** (-largest * place / power) for place in range(1, power + 1)]
    return tuple(every if power == heads else (every[1::2] + every[::2])[:heads])


def _mpt(config: ModelConfig) -> DecoderSpec:
    for field, value, served in (
        ("alibi", config.alibi, True),
        ("no_bias", config.no_bias, True),
        ("qk_ln", config.qk_ln, False),
        ("prefix_lm", config.prefix_lm, False),
        ("attn_type", config.attn_type, "multihead_attention"),
    ):
        if value not in (None, served):
            raise ModelError(f"config.json: {field} {value} of MPT is not supported; expected {served}")
    made = decoder_spec(config, "mpt", activation="gelu_erf", rope=_NOT_TURNED, tied=True)
    made = replace(made, norm="layer", gated_mlp=False, alibi=slopes(made.num_heads, config.alibi_bias_max or 8.0))
    return replace(made, attention_scale=config.attention_multiplier or 0.0, qkv_clip=config.clip_qkv or 0.0)


def _bloom(config: ModelConfig) -> DecoderSpec:
    if config.apply_residual_connection_post_layernorm:
        raise ModelError("config.json: apply_residual_connection_post_layernorm of BLOOM is not supported")
    made = decoder_spec(
        config, "bloom", qkv_bias=True, output_bias=True, mlp_bias=True, activation="gelu", rope=_NOT_TURNED, tied=True
    )
    made = replace(made, norm="layer", norm_bias=True, gated_mlp=False, embedding_norm=True)
    return replace(made, alibi=slopes(made.num_heads))


def _baichuan(config: ModelConfig) -> DecoderSpec:
    made = replace(decoder_spec(config, "baichuan"), normalised_head=config.normalised_head)
    return replace(made, rope=_NOT_TURNED, alibi=slopes(made.num_heads)) if config.alibi else made


def _mpt_places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _MPT)


def _bloom_places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _BLOOM)


def _baichuan_places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _BAICHUAN)


MPT = Family(architecture="MPTForCausalLM", also="MptForCausalLM", models="MPT 7B, 30B", spec=_mpt, places=_mpt_places)
BLOOM = Family(architecture="BloomForCausalLM", models="BLOOM, BLOOMZ", spec=_bloom, places=_bloom_places)
BAICHUAN = Family(
    architecture="BaichuanForCausalLM",
    also="BaiChuanForCausalLM",
    models="Baichuan and Baichuan 2, 7B and 13B",
    spec=_baichuan,
    places=_baichuan_places,
)
