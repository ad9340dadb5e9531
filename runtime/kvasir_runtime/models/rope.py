"""Which rotary embedding a config describes, as data that `layers.rotary` computes from.

Called by families. Of the two places where configs keep it, rope_scaling wins, which is what model cards tell users to
add; the base and the share of rotated dimensions are taken from either.
"""

import math
from dataclasses import replace
from typing import Final, get_args

import msgspec

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.layer_specs import TemperatureSpec
from kvasir_runtime.layers.spec import RopeKind, RopeSpec
from kvasir_runtime.models.config import ModelConfig, RopeConfig

_OLDER_NAMES: Final = {"su": "longrope"}
_NTK: Final = "ntk"


def rope_spec(config: ModelConfig) -> RopeSpec:
    """The rotary embedding that a config describes. Raises ModelError for a kind that is not implemented."""
    newer = config.rope_parameters or RopeConfig()
    scaling = config.rope_scaling or newer
    if scaling.partial_rotary_factor is None:
        scaling = msgspec.structs.replace(scaling, partial_rotary_factor=newer.partial_rotary_factor)
    if scaling.full_attention or scaling.sliding_attention:
        raise ModelError("config.json: rope_parameters for each kind of layer are not supported in this architecture")
    return rope_of(config, scaling, newer.rope_theta or config.rope_theta or 10_000.0)


def yarn_scale(config: ModelConfig) -> float:
    """What YaRN scales queries and keys by where it scales scores (mscale_all_dim); 1 elsewhere."""
    scaling = config.rope_scaling or config.rope_parameters or RopeConfig()
    if (scaling.rope_type or scaling.type) != "yarn" or not scaling.mscale_all_dim:
        return 1.0
    factor = _factor(config, scaling, "yarn")
    return 0.1 * scaling.mscale_all_dim * math.log(factor) + 1 if factor > 1 else 1.0


def growing_queries(config: ModelConfig) -> TemperatureSpec | None:
    """How queries behind the positions of training grow (Ministral 3); None where llama_4_scaling_beta names nothing.

    Raises ModelError where those positions are missing.
    """
    scaling = config.rope_scaling or config.rope_parameters or RopeConfig()
    original = scaling.original_max_position_embeddings or config.original_max_position_embeddings
    if not scaling.llama_4_scaling_beta:
        return None
    if original is None:
        raise ModelError("config.json: llama_4_scaling_beta needs original_max_position_embeddings")
    return TemperatureSpec(scale=scaling.llama_4_scaling_beta, step=original, first=0)


def rope_of(config: ModelConfig, scaling: RopeConfig, theta: float) -> RopeSpec:
    """The rotary embedding of one kind of layer. theta: where scaling names none. Raises ModelError as `rope_spec`."""
    named = scaling.rope_type or scaling.type or "default"
    kind = _OLDER_NAMES.get(named, named)
    if kind not in (*get_args(RopeKind), _NTK) or scaling.mixed_b is not None:
        known = ", ".join(sorted({*get_args(RopeKind), _NTK} - {"factors"}))
        mixed = "" if scaling.mixed_b is None else " with mixed_b"
        raise ModelError(f"config.json: rope type {named}{mixed} is not supported; expected one of {known}")
    width = config.width_of_head
    rotary_dim = int(width * (scaling.partial_rotary_factor or config.partial_rotary_factor or 1.0))
    if rotary_dim % 2 or not 2 <= rotary_dim <= width:
        raise ModelError(f"config.json: partial_rotary_factor gives {rotary_dim} of {width} dimensions, expected pairs")
    plain = RopeSpec(theta=scaling.rope_theta or theta, rotary_dim=rotary_dim if rotary_dim < width else 0)
    if kind == "dynamic" and scaling.alpha and rotary_dim > 2:  # of Hunyuan: another base, whatever the length
        return replace(plain, theta=plain.theta * scaling.alpha ** (rotary_dim / (rotary_dim - 2)))
    if kind == "default":
        return plain
    if kind == _NTK:  # of gte: another base and slower pairs, whatever the length
        factor = _factor(config, scaling, kind)
        return replace(plain, kind="linear", theta=plain.theta * factor, factor=factor ** (2 / rotary_dim))
    if kind == "factors":
        return replace(plain, kind="factors", factors=_for_each_pair("factors", scaling.factors, rotary_dim))
    stretched = replace(
        plain,
        kind=kind,  # type: ignore[arg-type]  # checked against RopeKind above
        original_max_position=_original(config, scaling, kind),
        factor=_factor(config, scaling, kind),
        low_freq_factor=scaling.low_freq_factor,
        high_freq_factor=scaling.high_freq_factor,
        beta_fast=scaling.beta_fast or 32.0,
        beta_slow=scaling.beta_slow or 1.0,
        truncate=scaling.truncate,
    )
    if kind == "yarn":
        return replace(stretched, attention_factor=_yarn_attention(scaling, stretched.factor))
    if kind == "longrope":
        return replace(
            stretched,
            factors=_for_each_pair("long_factor", scaling.long_factor, rotary_dim),
            short_factors=_for_each_pair("short_factor", scaling.short_factor, rotary_dim),
            attention_factor=scaling.attention_factor or _longrope_attention(stretched),
        )
    return stretched


def _original(config: ModelConfig, scaling: RopeConfig, kind: str) -> int:
    """Positions that the model was trained with before it was stretched. Of dynamic scaling always the config's own."""
    given = config.original_max_position_embeddings or scaling.original_max_position_embeddings
    return config.max_position_embeddings if kind == "dynamic" or given is None else given


def _factor(config: ModelConfig, scaling: RopeConfig, kind: str) -> float:
    """Where it is not written, yarn and longrope stretch to the config's positions. Raises ModelError for others."""
    if scaling.factor is not None:
        return scaling.factor
    if kind not in ("yarn", "longrope"):
        raise ModelError(f"config.json: rope type {kind} needs a factor")
    return config.max_position_embeddings / _original(config, scaling, kind)


def _for_each_pair(name: str, factors: tuple[float, ...] | None, rotary_dim: int) -> tuple[float, ...]:
    found = factors or ()
    if len(found) != rotary_dim // 2:
        raise ModelError(
            f"config.json: {len(found)} rotary factors ({name}) for {rotary_dim} dimensions, expected one for each pair"
        )
    return found


def _yarn_attention(scaling: RopeConfig, factor: float) -> float:
    """0 where it follows from factor alone."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale is None or scaling.mscale_all_dim is None or factor <= 1:
        return 0.0
    grown = 0.1 * math.log(factor)
    return (grown * scaling.mscale + 1) / (grown * scaling.mscale_all_dim + 1)


def _longrope_attention(rope: RopeSpec) -> float:
    """As LongRoPE's authors compute it."""
    return math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_max_position)) if rope.factor > 1 else 1.0
