"""Gemma 2 and 3 (text): norms around attention and feed-forward layers, GELU, windows in some layers.

Gemma 2 caps scores and logits; Gemma 3 has norms of heads instead, and other angles in layers with a window.
"""

from dataclasses import replace
from typing import Final

import msgspec

from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig, RopeConfig
from kvasir_runtime.models.family import Family, Place, decoder_spec, usual_places, whole
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


def _places(spec: DecoderSpec) -> dict[str, Place]:
    """The usual names, but that the norm behind attention is one of two there."""
    places = usual_places(spec)
    for layer in range(spec.num_layers):
        theirs, ours = f"model.layers.{layer}.", f"layers.{layer}."
        before, behind = theirs + "pre_feedforward_layernorm.weight", theirs + "post_attention_layernorm.weight"
        places[before] = places[behind]
        places[behind] = whole(ours + "attention_outer_norm", spec.hidden_size)
        places[theirs + "post_feedforward_layernorm.weight"] = whole(ours + "mlp_outer_norm", spec.hidden_size)
    return places


GEMMA2 = Family(architecture="Gemma2ForCausalLM", spec=_gemma2, places=_places)
GEMMA3 = Family(
    architecture="Gemma3ForCausalLM", spec=_gemma3, places=_places, with_images="Gemma3ForConditionalGeneration"
)
