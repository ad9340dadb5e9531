"""Falcon 7B, 40B and 11B: attention and feed-forward layers side by side, behind one norm or each behind its own.

Falcon-RW has them in turn, and scores that lose with the distance.
"""

from dataclasses import replace
from typing import Final

from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.alibi import slopes
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec, usual_places

_NAMES: Final = TensorNames(
    embedding="transformer.word_embeddings",
    layer="transformer.h.{}.",
    qkv="self_attention.query_key_value",
    by_group=True,
    output="self_attention.dense",
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
    norm="transformer.ln_f",
)
_OWN_NORMS: Final = replace(_NAMES, attention_norm="ln_attn", mlp_norm="ln_mlp")


def _spec(config: ModelConfig) -> DecoderSpec:
    newer, bias = bool(config.new_decoder_architecture), bool(config.bias)
    parallel = newer or config.parallel_attn is not False
    one = parallel and not (newer and config.num_ln_in_parallel_attn != 1)
    made = decoder_spec(
        config, "falcon", qkv_bias=bias, output_bias=bias, mlp_bias=bias, activation="gelu_erf", tied=True
    )
    made = replace(made, norm="layer", norm_bias=True, gated_mlp=False, parallel=parallel, shared_norm=one)
    if not config.alibi:
        return made
    scale = made.head_dim**-0.5  # of scores, whose losses are in them before
    losses = tuple(slope * scale for slope in slopes(made.num_heads))
    return replace(made, rope=RopeSpec(kind="none"), alibi=losses)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _OWN_NORMS if spec.parallel and not spec.shared_norm else _NAMES)


FALCON = Family(
    architecture="FalconForCausalLM", models="Falcon 7B, 40B, Falcon 2 11B, Falcon-RW", spec=_spec, places=_places
)
