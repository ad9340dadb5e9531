"""JinaBERT: BERT whose scores lose with the distance in both directions (ALiBi), with gated feed-forward layers."""

from dataclasses import replace
from functools import partial
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.encoder_spec import EncoderSpec
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.alibi import slopes
from kvasir_runtime.models.bert import LAYERS, UNUSED
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.encoder_places import EncoderNames, encoder_places, with_head
from kvasir_runtime.models.family import Family, decoder_spec

_NAMES: Final = EncoderNames(
    layers=replace(LAYERS, gate_up="mlp.gated_layers", down="mlp.wo", attention_norm="mlp.layernorm"),
    pooler="pooler.dense",
    labels="classifier",
)
_NORMED_HEADS: Final = "-qk-"
"""In the name of the code that a config names for models whose queries and keys have norms."""


def _spec(config: ModelConfig) -> DecoderSpec:
    for field, value, served in (
        ("position_embedding_type", config.position_embedding_type, "alibi"),
        ("feed_forward_type", config.feed_forward_type, "geglu"),
    ):
        if value != served:
            raise ModelError(f"config.json: {field} {value} of JinaBERT is not supported; expected {served}")
    if _NORMED_HEADS in str(config.auto_map):
        raise ModelError(
            "config.json: auto_map names JinaBERT with norms of queries and keys, which is not supported; the models"
            " of English, small and base, have none"
        )
    made = decoder_spec(
        config,
        "jina_bert",
        qkv_bias=True,
        output_bias=True,
        mlp_bias="down",
        activation="gelu_erf",
        rope=RopeSpec(kind="none"),
        tied=True,
    )
    own = EncoderSpec(types=config.type_vocab_size)
    return with_head(
        replace(made, norm="layer", norm_bias=True, alibi=slopes(config.num_attention_heads), encoder=own), config
    )


JINA_BERT = Family(
    architecture="JinaBertModel",
    models="jina-embeddings-v2-small-en, base-en",
    spec=_spec,
    places=partial(encoder_places, names=_NAMES),
    unused=UNUSED,
)
