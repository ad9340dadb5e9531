"""NomicBERT: BERT whose heads turn, with gated feed-forward layers and without biases but those of norms."""

from dataclasses import replace
from functools import partial
from typing import Final

import msgspec

from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.encoder_spec import EncoderSpec
from kvasir_runtime.layers.spec import DecoderSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.encoder_places import EncoderNames, encoder_places, with_head
from kvasir_runtime.models.family import Family, TensorNames, decoder_spec

NAMES: Final = EncoderNames(
    layers=TensorNames(
        embedding="embeddings.word_embeddings",
        layer="encoder.layers.{}.",
        qkv="attn.Wqkv",
        output="attn.out_proj",
        gate="mlp.fc12",
        up="mlp.fc11",
        down="mlp.fc2",
        attention_norm="norm2",
        mlp_norm="norm1",
        norm="emb_ln",  # its place is the first layer's
    ),
    norm="emb_ln",
    pooler="pooler.dense",
    labels="classifier",
)


def _spec(config: ModelConfig) -> DecoderSpec:
    changed = {
        "prenorm": config.prenorm,
        "qkv_proj_bias": config.qkv_proj_bias,
        "mlp_fc1_bias": config.mlp_fc1_bias,
        "mlp_fc2_bias": config.mlp_fc2_bias,
        "rotary_emb_interleaved": config.rotary_emb_interleaved,
        "rotary_emb_fraction": config.rotary_emb_fraction != 1,
        "moe_every_n_layers": config.moe_every_n_layers,
    }
    if set_ := [name for name, value in changed.items() if value]:
        raise ModelError(f"config.json: {set_[0]} of NomicBERT is not supported; v1 and v1.5 are")
    usual = msgspec.structs.replace(config, hidden_act="silu") if config.hidden_act == "swiglu" else config
    made = decoder_spec(usual, "nomic_bert", tied=True)
    own = EncoderSpec(types=config.type_vocab_size)
    return with_head(replace(made, norm="layer", norm_bias=True, encoder=own), config)


NOMIC_BERT = Family(
    architecture="NomicBertModel",
    models="nomic-embed-text-v1, v1.5",
    spec=_spec,
    places=partial(encoder_places, names=NAMES),
    unused=("cls.", "pooler."),
)
