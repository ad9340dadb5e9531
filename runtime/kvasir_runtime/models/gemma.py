"""Gemma 2 and 3 (text): norms around attention and feed-forward layers, GELU, windows in some layers.

Gemma 2 caps scores and logits; Gemma 3 has norms of heads instead, and other angles in layers with a window.
"""

from dataclasses import replace
from typing import Final

import msgspec

from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig, RopeConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places
from kvasir_runtime.models.rope import rope_of

# What a config means that does not say, as the families' own code has it.
_QUERY_SCALAR: Final = 256.0
_ATTENTION_CAP: Final = 50.0
_LOGIT_CAP: Final = 30.0


def _gemma2(config: ModelConfig) -> DecoderSpec:
    return replace(
        _spec(config, "gemma2"),
        attention_cap=_cap(config.attn_logit_softcapping, _ATTENTION_CAP),
        logit_cap=_cap(config.final_logit_softcapping, _LOGIT_CAP),
    )


def _gemma3(config: ModelConfig) -> DecoderSpec:
    given = config.rope_parameters or RopeConfig()
    if given.full_attention is None and given.sliding_attention is None:  # as older files have it
        given = RopeConfig(full_attention=config.rope_scaling or config.rope_parameters)
    full, local = given.full_attention or RopeConfig(), given.sliding_attention or RopeConfig()
    return replace(
        _spec(
            config,
            "gemma3_text",
            qk_norm=True,
            rope=rope_of(config, full, config.rope_theta or 1_000_000.0),
        ),
        local_rope=rope_of(config, local, config.rope_local_base_freq or 10_000.0),
        attention_cap=_cap(config.attn_logit_softcapping, 0.0),
        logit_cap=_cap(config.final_logit_softcapping, 0.0),
    )


def _spec(config: ModelConfig, family: str, *, qk_norm: bool = False, rope: RopeSpec | None = None) -> DecoderSpec:
    return replace(
        decoder_spec(
            config,
            family,
            qkv_bias=config.attention_bias,
            output_bias=config.attention_bias,
            qk_norm=qk_norm,
            activation="gelu",
            rope=rope,
            tied=True,
        ),
        norms_less_one=True,
        outer_norms=True,
        embedding_scale=config.hidden_size**0.5,
        attention_scale=(config.query_pre_attn_scalar or _QUERY_SCALAR) ** -0.5,
    )


def _cap(given: float | msgspec.UnsetType | None, default: float) -> float:
    return default if given is msgspec.UNSET else given or 0.0


_NAMES: Final = TensorNames(
    attention_outer_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    mlp_outer_norm="post_feedforward_layernorm",
)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _NAMES)


GEMMA2 = Family(architecture="Gemma2ForCausalLM", models="Gemma 2", spec=_gemma2, places=_places)
GEMMA3 = Family(
    architecture="Gemma3ForCausalLM",
    models="Gemma 3, EmbeddingGemma",
    also="Gemma3TextForCausalLM",
    spec=_gemma3,
    places=_places,
    with_images="Gemma3ForConditionalGeneration",
)
