"""gte: BERT whose heads turn, with gated feed-forward layers whose gate lies behind what it multiplies."""

from dataclasses import replace
from functools import partial
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.encoder_spec import EncoderSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.encoder_places import EncoderNames, encoder_places, with_head
from kvasir_runtime.models.family import Family, TensorNames, decoder_spec

_NAMES: Final = EncoderNames(
    layers=TensorNames(
        embedding="embeddings.word_embeddings",
        layer="encoder.layer.{}.",
        qkv="attention.qkv_proj",
        output="attention.o_proj",
        gate_up="mlp.up_gate_proj",
        gate_behind=True,
        down="mlp.down_proj",
        attention_norm="mlp_ln",
        mlp_norm="attn_ln",
        norm="embeddings.LayerNorm",  # its place is the first layer's
    ),
    pooler="pooler.dense",
    labels="classifier",
)


def _spec(config: ModelConfig) -> DecoderSpec:
    changed = {
        "position_embedding_type": config.position_embedding_type not in (None, "rope"),
        "layer_norm_type": config.layer_norm_type != "layer_norm",
        "logn_attention_scale": config.logn_attention_scale,
    }
    if set_ := [name for name, value in changed.items() if value]:
        raise ModelError(f"config.json: {set_[0]} {getattr(config, set_[0])} of gte is not supported")
    made = decoder_spec(
        config, "gte", qkv_bias=True, output_bias=True, mlp_bias="down", activation="gelu_erf", tied=True
    )
    return with_head(
        replace(made, norm="layer", norm_bias=True, encoder=EncoderSpec(types=config.type_vocab_size)), config
    )


GTE = Family(
    architecture="NewModel",
    also="GteModel",
    models="gte-base-en-v1.5, gte-large-en-v1.5, gte-multilingual-base and its reranker, Snowflake Arctic M v2.0",
    spec=_spec,
    places=partial(encoder_places, names=_NAMES),
    unused=("lm_head.", "pooler.", "classifier."),
)
