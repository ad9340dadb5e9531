"""Tiny random encoders as the hub has them, by transformers itself: its names, its shapes, and real tokenizers.

Heads that a model was trained with are stored too, as most checkpoints for embeddings have them. It must not import our
packages.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from fakes import jina_bert, jina_xlm_roberta

VOCAB = 160
LONGEST = 100
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": LONGEST,
    "pad_token_id": 0,
}
TEXT = """A search engine ranks documents by how well they answer a query. An embedding is a vector of numbers, so that
texts of one meaning are near to one another. Kubernetes runs pods on nodes; the operator watches services and scales
replicas. Was ist eine Einbettung? Ein Vektor, der die Bedeutung eines Textes trägt. """


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """config: beside SIZES. stem: of the names of its architectures. wordpiece: the tokenizer, else unigrams.

    published: fields of config.json in place of those that transformers writes, None for those that are not there.
    """

    stem: str
    family: str
    config: dict[str, Any] = field(default_factory=dict)
    published: dict[str, Any] = field(default_factory=dict)
    wordpiece: bool = True


PADDED = {"pad_token_id": 1, "max_position_embeddings": LONGEST + 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
DISTILBERT = {"dim": 32, "hidden_dim": 48, "n_layers": 3, "n_heads": 4}
NO_TYPES = {"pad_token_id": 1, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
FLASH = {"model_type": None, "auto_map": jina_xlm_roberta.CODE}
JINA = {"position_embedding_type": "alibi", "feed_forward_type": "geglu"}
ENCODERS = {
    "bert": Encoder(stem="Bert", family="bert"),
    "roberta": Encoder(stem="Roberta", family="roberta", config=PADDED),
    "xlm-roberta": Encoder(stem="XLMRoberta", family="xlm-roberta", config=PADDED, wordpiece=False),
    "camembert": Encoder(stem="Camembert", family="camembert", config=PADDED),
    "distilbert": Encoder(stem="DistilBert", family="distilbert", config=DISTILBERT),
    "mpnet": Encoder(stem="MPNet", family="mpnet", config=PADDED | {"relative_attention_num_buckets": 32}),
    "modernbert": Encoder(
        stem="ModernBert",
        family="modernbert",
        config={"local_attention": 16, "global_attn_every_n_layers": 3, "classifier_pooling": "mean"},
    ),
    "modernbert-cls": Encoder(
        stem="ModernBert",
        family="modernbert",
        config={"local_attention": 8, "attention_bias": True, "mlp_bias": True, "norm_bias": True}
        | {"classifier_bias": True},
    ),
    "nomic": Encoder(stem="NomicBert", family="nomic_bert"),
    "jina": Encoder(stem="JinaBert", family="bert", config=JINA),
    "jina-normed": Encoder(
        stem="JinaBert",
        family="bert",
        config=JINA | {"auto_map": {"AutoModel": "jinaai/jina-bert-v2-qk-post-norm--modeling_bert.JinaBertModel"}},
    ),
    "jina-6-heads": Encoder(
        stem="JinaBert", family="bert", config=JINA | {"num_attention_heads": 6, "hidden_size": 48}
    ),
    "jina-v3": Encoder(stem="JinaEmbeddingsV3", family="jina_embeddings_v3", config=NO_TYPES, wordpiece=False),
    "jina-v3-adapters": Encoder(
        stem="XLMRoberta",
        family="jina_embeddings_v3",
        config=NO_TYPES,
        published=FLASH | {"position_embedding_type": "rotary", "rotary_emb_base": 20_000.0, "rope_parameters": None},
    ),
    "jina-reranker-v2": Encoder(stem="XLMRoberta", family="xlm-roberta", config=PADDED, published=FLASH),
    "gte": Encoder(stem="Gte", family="gte", config={"type_vocab_size": 0}),
    "gte-new": Encoder(
        stem="New",
        family="gte",
        config={
            "type_vocab_size": 2,  # what NTK's scaling by 8 comes to
            "rope_parameters": {"rope_type": "linear", "rope_theta": 160_000.0, "factor": 8.0 ** (2 / 8)},
        },
        published={
            "model_type": "new",
            "position_embedding_type": "rope",
            "rope_theta": 20_000.0,
            "rope_scaling": {"type": "ntk", "factor": 8.0},
            "rope_parameters": None,
        },
    ),
}
GROUPED = {"num_key_value_heads": 2, "tie_word_embeddings": False}
DECODERS = {
    "embedding-gemma": Encoder(
        stem="Gemma3Text",
        family="gemma3_text",
        config={"num_key_value_heads": 1, "head_dim": 16, "sliding_window": 16, "query_pre_attn_scalar": 24}
        | {"use_bidirectional_attention": True, "num_hidden_layers": 7},
    ),
    "gte-qwen2": Encoder(stem="Qwen2", family="qwen2", config=GROUPED | {"is_causal": False}),
    **{
        f"{family}-both-ways": Encoder(stem=stem, family=family, config=GROUPED | {"is_causal": False} | more)
        for family, stem, more in (
            ("llama", "Llama", {}),
            ("mistral", "Mistral", {"sliding_window": None}),
            ("qwen3", "Qwen3", {"head_dim": 16}),
        )
    },
}
"""Those whose tokens see what comes behind them too."""
HEADS = {
    "": AutoModel,
    "ForCausalLM": AutoModelForCausalLM,
    "ForMaskedLM": AutoModelForMaskedLM,
    "ForSequenceClassification": AutoModelForSequenceClassification,
}


def write(folder: Path, name: str, *, head: str = "", labels: int = 1, bare: bool = False) -> torch.nn.Module:
    """A checkpoint with a tokenizer; what it returns computes the same in float32, its head too.

    head: "" for none, ForMaskedLM or ForCausalLM, ForSequenceClassification. bare: without the head, and names without
    the family's first part.
    """
    encoder = (ENCODERS | DECODERS)[name]
    folder.mkdir(parents=True, exist_ok=True)
    given = SIZES | encoder.config | ({"num_labels": labels} if head == "ForSequenceClassification" else {})
    config = AutoConfig.for_model(encoder.family, **given)
    config._attn_implementation = "eager"
    judge: torch.nn.Module = HEADS[head].from_config(config, dtype=torch.float32).eval()
    if encoder.stem == "JinaBert":
        judge = jina_bert.of(judge, normed=name == "jina-normed").eval()
    generator = torch.Generator().manual_seed(sum(name.encode()))
    with torch.no_grad():
        for key, parameter in judge.named_parameters():
            mean = 1.0 if "norm" in key.lower() and key.endswith("weight") else 0.0
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2 + mean)
    judge.save_pretrained(folder)  # type: ignore[operator]  # a PreTrainedModel
    path, first = folder / "model.safetensors", f"{judge.base_model_prefix}."
    weights = _published(load_file(path), name)
    if bare:
        weights = {key.removeprefix(first): tensor for key, tensor in weights.items() if key.startswith(first)}
    if encoder.stem == "New":
        weights = {key.replace(first, "new."): tensor for key, tensor in weights.items()}
    save_file(weights, path, metadata={"format": "pt"})
    written = json.loads((folder / "config.json").read_text()) | encoder.published
    written["architectures"] = [encoder.stem + (head or "Model")]
    kept = {key: value for key, value in written.items() if value is not None or key not in encoder.published}
    (folder / "config.json").write_text(json.dumps(kept))
    tokenizer = wordpiece() if encoder.wordpiece else unigrams()
    tokenizer.save(str(folder / "tokenizer.json"))
    return judge


def _published(weights: dict[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    """Tensors that transformers wrote under the names of the hub."""
    if name.startswith("jina") and ENCODERS[name].stem == "JinaBert":
        return jina_bert.renamed(weights, normed=name == "jina-normed")
    if name == "jina-reranker-v2":
        return jina_xlm_roberta.renamed(weights)
    return jina_xlm_roberta.with_adapters(weights) if name == "jina-v3-adapters" else weights


def sentence_transformers(
    folder: Path,
    mode: str,
    *,
    normalize: bool = True,
    prompts: dict[str, str] | None = None,
    longest: int = 0,
    dense: Sequence[Any] = (),
) -> None:
    """The files that say how embeddings are made. mode: as of its Pooling. dense: layers of torch behind it, each
    followed by its activation.
    """
    layers = list(zip(dense[::2], dense[1::2], strict=True))
    names = ["Transformer", "Pooling", *["Dense"] * len(layers), *(["Normalize"] if normalize else [])]
    rows = [
        {"idx": i, "name": str(i), "path": f"{i}_{name}" * (i > 0), "type": f"sentence_transformers.models.{name}"}
        for i, name in enumerate(names)
    ]
    (folder / "modules.json").write_text(json.dumps(rows))
    for number, (linear, activation) in enumerate(layers, start=2):
        (place := folder / f"{number}_Dense").mkdir()
        weights = {f"linear.{name}": tensor.detach() for name, tensor in linear.named_parameters()}
        save_file(weights, place / "model.safetensors")
        sizes = {"in_features": linear.in_features, "out_features": linear.out_features}
        kind = f"{type(activation).__module__}.{type(activation).__name__}"
        config = sizes | {"bias": linear.bias is not None, "activation_function": kind}
        (place / "config.json").write_text(json.dumps(config))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps({f"pooling_mode_{mode}": True}))
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    if longest:
        (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": longest}))


def wordpiece() -> Tokenizer:
    """BERT's: lower case, words in pieces, a pair as two texts of different type."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def unigrams() -> Tokenizer:
    """XLM-RoBERTa's: SentencePiece unigrams, a pair between two ends each, of one type."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=VOCAB, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


@torch.inference_mode()
def hidden_of(judge: torch.nn.Module, ids: Sequence[int], second_from: int = 0) -> torch.Tensor:
    """(tokens, hidden) of the encoder, whatever head it has."""
    base = getattr(judge, "base_model", judge)
    out: torch.Tensor = base(torch.tensor([list(ids)]), **_types(judge, ids, second_from)).last_hidden_state[0]
    return out


@torch.inference_mode()
def labels_of(judge: torch.nn.Module, ids: Sequence[int], second_from: int = 0) -> torch.Tensor:
    """(labels,) of the classification head."""
    out: torch.Tensor = judge(torch.tensor([list(ids)]), **_types(judge, ids, second_from)).logits[0]
    return out


def _types(judge: torch.nn.Module, ids: Sequence[int], second_from: int) -> dict[str, torch.Tensor]:
    """Of the tokens of a pair, for a model that has them."""
    if not second_from or getattr(judge.config, "type_vocab_size", 0) < 2:
        return {}
    return {"token_type_ids": torch.tensor([[int(place >= second_from) for place in range(len(ids))]])}
