"""JinaBERT: BERT whose scores lose with the distance in both directions (ALiBi), with gated feed-forward layers.

Two kinds: one as its paper has it, and one with norms of the queries and of the keys of all heads, whose residual is
added twice behind attention, and whose gate lies behind what it multiplies.
"""

from dataclasses import replace
from typing import Final

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.encoder_spec import EncoderSpec
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.alibi import slopes
from kvasir_runtime.models.bert import LAYERS, UNUSED
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.encoder_places import EncoderNames, encoder_places, with_head
from kvasir_runtime.models.family import Family, Place, decoder_spec

_NAMES: Final = EncoderNames(
    layers=replace(LAYERS, gate_up="mlp.gated_layers", down="mlp.wo", attention_norm="mlp.layernorm"),
    pooler="pooler.dense",
    labels="classifier",
)
_NORMED: Final = replace(
    _NAMES,
    layers=replace(
        LAYERS,
        query_norm="attention.self.layer_norm_q",
        key_norm="attention.self.layer_norm_k",
        attention_outer_norm="attention.output.LayerNorm",
        mlp_norm="layer_norm_1",
        gate_up="mlp.up_gated_layer",
        gate_behind=True,
        down="mlp.down_layer",
        attention_norm="layer_norm_2",
    ),
)


def _spec(config: ModelConfig) -> DecoderSpec:
    for field, value, served in (
        ("position_embedding_type", config.position_embedding_type, "alibi"),
        ("feed_forward_type", config.feed_forward_type, "geglu"),
    ):
        if value != served:
            raise ModelError(f"config.json: {field} {value} of JinaBERT is not supported; expected {served}")
    has_norms = bool(config.use_qk_norm)
    made = decoder_spec(
        config,
        "jina_bert",
        qkv_bias=True,
        output_bias=True,
        mlp_bias="down",
        qk_norm=has_norms,
        activation="gelu_erf",
        rope=RopeSpec(kind="none"),
        tied=True,
    )
    own = EncoderSpec(types=config.type_vocab_size, sums_twice=has_norms)
    losing = replace(made, alibi=slopes(config.num_attention_heads), wide_qk_norm=has_norms)
    return with_head(replace(losing, norm="layer", norm_bias=True, encoder=own), config)


def _places(spec: DecoderSpec) -> dict[str, Place]:
    return encoder_places(spec, _NORMED if spec.qk_norm else _NAMES)


JINA_BERT = Family(
    architecture="JinaBertModel",
    models="jina-embeddings-v2-small-en, base-en, base-code, base-de, base-es, base-zh",
    spec=_spec,
    places=_places,
    unused=UNUSED,
)
