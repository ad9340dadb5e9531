"""Falcon 7B, 40B and 11B: attention and feed-forward layers side by side, behind one norm or each behind its own."""

from dataclasses import replace
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.spec import DecoderSpec
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
    if config.alibi:
        raise ModelError("config.json: alibi of Falcon is not supported; expected rotary embedding")
    newer, bias = bool(config.new_decoder_architecture), bool(config.bias)
    parallel = newer or config.parallel_attn is not False
    one = parallel and not (newer and config.num_ln_in_parallel_attn != 1)
    made = decoder_spec(
        config, "falcon", qkv_bias=bias, output_bias=bias, mlp_bias=bias, activation="gelu_erf", tied=True
    )
    return replace(made, norm="layer", norm_bias=True, gated_mlp=False, parallel=parallel, shared_norm=one)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return usual_places(spec, _OWN_NORMS if spec.parallel and not spec.shared_norm else _NAMES)


FALCON = Family(architecture="FalconForCausalLM", models="Falcon 7B, 40B, Falcon 2 11B", spec=_spec, places=_places)
