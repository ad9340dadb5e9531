"""ModernBERT: norms before layers, no biases, gated feed-forward layers, two layers of three see their surroundings."""

from dataclasses import replace
from typing import Final

import msgspec

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.encoder_spec import EncoderSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig, RopeConfig
from kvasir_runtime.models.encoder_places import EncoderNames, encoder_places, with_head
from kvasir_runtime.models.family import Family, Place, TensorNames, decoder_spec
from kvasir_runtime.models.rope import rope_of

_NAMES: Final = EncoderNames(
    layers=TensorNames(
        embedding="embeddings.tok_embeddings",
        qkv="attn.Wqkv",
        output="attn.Wo",
        gate_up="mlp.Wi",
        down="mlp.Wo",
        attention_norm="attn_norm",
        mlp_norm="mlp_norm",
        norm="final_norm",
    ),
    norm="embeddings.norm",
    pooler="head.dense",
    pooler_norm="head.norm",
    labels="classifier",
)
_GLOBAL_THETA: Final = 160_000.0
_LOCAL_THETA: Final = 10_000.0


def _spec(config: ModelConfig) -> DecoderSpec:
    if config.classifier_activation != "gelu":
        raise ModelError(f"config.json: classifier_activation {config.classifier_activation} is not supported")
    given = config.rope_parameters or RopeConfig()
    full, local = given.full_attention or RopeConfig(), given.sliding_attention or RopeConfig()
    made = decoder_spec(
        msgspec.structs.replace(config, hidden_act=config.hidden_activation or "gelu"),
        "modernbert",
        qkv_bias=config.attention_bias,
        output_bias=config.attention_bias,
        mlp_bias=config.mlp_bias,
        activation="gelu_erf",
        rope=rope_of(config, full, config.global_rope_theta or _GLOBAL_THETA),
        tied=True,
    )
    own = EncoderSpec(post_norms=False, pooler="gelu_erf", pooler_bias=config.classifier_bias, pooler_norm=True)
    return with_head(
        replace(
            made,
            norm="layer",
            norm_bias=config.norm_bias,
            local_rope=rope_of(config, local, config.local_rope_theta or _LOCAL_THETA),
            encoder=own,
        ),
        config,
    )


def _places(spec: DecoderSpec) -> dict[str, Place]:
    """The first layer has no norm of its own."""
    first = f"{_NAMES.layers.layer.format(0)}{_NAMES.layers.attention_norm}."
    return {name: place for name, place in encoder_places(spec, _NAMES).items() if not name.startswith(first)}


MODERNBERT = Family(
    architecture="ModernBertModel",
    models="gte-modernbert-base, gte-reranker-modernbert-base, modernbert-embed",
    spec=_spec,
    places=_places,
    unused=("head.", "decoder.", "classifier."),
)
