"""BERT and those that changed little of it: RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, MPNet and Jina's XLM-RoBERTa.

Norms of the mean too behind what a layer adds, biases everywhere, feed-forward layers without a gate, a table of
positions. Jina's has the names of flash attention, and heads that turn in place of the table or not.
"""

from dataclasses import replace
from functools import partial
from typing import Final

from kvasir_api.hf_config import first_position
from kvasir_api.jina import ROTARY
from kvasir_runtime.errors import ModelError
from kvasir_runtime.layers.encoder_spec import EncoderSpec
from kvasir_runtime.layers.spec import DecoderSpec, RopeSpec
from kvasir_runtime.models.config import ModelConfig
from kvasir_runtime.models.encoder_places import EncoderNames, encoder_places, with_head
from kvasir_runtime.models.family import Family, TensorNames, decoder_spec
from kvasir_runtime.models.nomic_bert import NAMES as FLASH_NAMES
from kvasir_runtime.models.rope import rope_spec

LAYERS: Final = TensorNames(
    embedding="embeddings.word_embeddings",
    layer="encoder.layer.{}.",
    query="attention.self.query",
    key="attention.self.key",
    value="attention.self.value",
    output="attention.output.dense",
    up="intermediate.dense",
    down="output.dense",
    attention_norm="output.LayerNorm",
    mlp_norm="attention.output.LayerNorm",
    norm="embeddings.LayerNorm",  # its place is the first layer's
)
_BERT: Final = EncoderNames(layers=LAYERS, pooler="pooler.dense", labels="classifier")
_ROBERTA: Final = EncoderNames(layers=LAYERS)
_MPNET: Final = EncoderNames(
    layers=replace(
        LAYERS,
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        output="attention.attn.o",
        mlp_norm="attention.LayerNorm",
    )
)
_DISTILBERT: Final = EncoderNames(
    layers=TensorNames(
        embedding="embeddings.word_embeddings",
        layer="transformer.layer.{}.",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        output="attention.out_lin",
        up="ffn.lin1",
        down="ffn.lin2",
        attention_norm="output_layer_norm",
        mlp_norm="sa_layer_norm",
        norm="embeddings.LayerNorm",
    ),
    pooler="pre_classifier",
    labels="classifier",
)
_JINA: Final = EncoderNames(
    layers=replace(FLASH_NAMES.layers, qkv="mixer.Wqkv", output="mixer.out_proj", up="mlp.fc1", down="mlp.fc2"),
    norm=FLASH_NAMES.norm,
)
UNUSED: Final = ("cls.", "lm_head.", "pooler.", "embeddings.position_ids", "classifier.", "vocab_")
"""Heads that guess words, what else BERT was trained for, and a table that counts positions."""


def _spec(config: ModelConfig, family: str) -> DecoderSpec:
    positions = config.position_embedding_type
    turns = family == "jina_embeddings_v3" and positions == ROTARY
    if positions not in (None, "absolute") and not turns:
        raise ModelError(f"config.json: position_embedding_type {positions} is not supported; expected absolute")
    made = decoder_spec(
        config,
        family,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        activation="gelu_erf",
        rope=rope_spec(config) if turns else RopeSpec(kind="none"),
        tied=True,
    )
    own = EncoderSpec(
        positions=0 if turns else config.max_position_embeddings,
        first_position=0 if turns else first_position({"model_type": family, "pad_token_id": config.pad_token_id}),
        types=config.type_vocab_size if family not in ("distilbert", "mpnet") else 0,
        relative_buckets=config.relative_attention_num_buckets if family == "mpnet" else 0,
        pooler="relu" if family == "distilbert" else "tanh",
    )
    return with_head(replace(made, norm="layer", norm_bias=True, gated_mlp=False, encoder=own), config)


def _family(architecture: str, models: str, family: str, names: EncoderNames) -> Family:
    return Family(
        architecture=architecture,
        models=models,
        spec=partial(_spec, family=family),
        places=partial(encoder_places, names=names),
        unused=UNUSED,
    )


BERT = _family(
    "BertModel", "bge, e5, gte, MiniLM and Snowflake Arctic of English, MS MARCO cross-encoders", "bert", _BERT
)
ROBERTA = _family("RobertaModel", "all-roberta, all-distilroberta, STS cross-encoders", "roberta", _ROBERTA)
XLM_ROBERTA = _family("XLMRobertaModel", "bge-m3, bge-reranker-v2-m3, multilingual-e5", "xlm-roberta", _ROBERTA)
CAMEMBERT = _family("CamembertModel", "sentence-camembert, CrossEncoder-camembert", "camembert", _ROBERTA)
JINA_XLM_ROBERTA = _family(
    "JinaEmbeddingsV3Model", "jina-embeddings-v3, jina-reranker-v2-base-multilingual", "jina_embeddings_v3", _JINA
)
DISTILBERT = _family("DistilBertModel", "msmarco-distilbert, distiluse", "distilbert", _DISTILBERT)
MPNET = _family("MPNetModel", "all-mpnet-base-v2, multi-qa-mpnet", "mpnet", _MPNET)
