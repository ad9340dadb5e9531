"""What a model can compute: text, embeddings, scores; and where it cannot, the sentence for the client.

Decided once at start from the engine's facts, the options and the files of the checkpoint. Files made by
sentence-transformers (modules.json and the Pooling config that it names) say how its embeddings are made, as a GGUF
file does itself; options win.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from kvasir_api import cache_groups
from kvasir_api.options import ServeOptions
from kvasir_runtime import gguf, sentence_modules
from kvasir_runtime.errors import ModelError
from kvasir_runtime.frontend.tokenizer import Tokenizer
from kvasir_runtime.tokenizer_files.files import read_json
from kvasir_runtime.wire import EngineFacts, PoolingConfig

JUDGEMENTS: Final = ("no", "yes")
_MODES: Final = {
    "pooling_mode_lasttoken": "lasttoken",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
}
_GGUF_MODES: Final = {0: "", 1: "mean", 2: "cls", 3: "lasttoken", 4: "rank"}
HiddenOf = Literal["last", "cls", "mean"]
_SERVED_MODES: Final[dict[str, HiddenOf]] = {"lasttoken": "last", "mean": "mean", "cls": "cls"}
_ACTIVATIONS: Final = {"Sigmoid": True, "Identity": False}
"""What cross-encoders of sentence-transformers do to their logit, and whether that is a sigmoid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingCapability:
    """kind: which hidden states. size: numbers in a whole vector. declared: the checkpoint or an option declares it.

    shortens: the first numbers alone are an embedding too (Matryoshka); sizes: the only ones, where they are known.
    prompts: texts that are put before those of a request that names them; prompt: before those of one that names none.
    """

    kind: HiddenOf
    normalize: bool
    size: int
    declared: bool = True
    shortens: bool = False
    sizes: tuple[int, ...] = ()
    prompts: Mapping[str, str] = field(default_factory=dict)
    prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringCapability:
    """kind: a label's logit, the logits of two tokens, or the similarity of two embeddings. pooling: of one prompt.

    is_probability: a score is the sigmoid of a label's logit, and not the logit itself.
    """

    kind: Literal["label", "judgement", "similarity"]
    pooling: PoolingConfig
    is_probability: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """A sentence stands for what the model cannot do. no_text: why it cannot generate, empty where it can."""

    no_text: str = ""
    embedding: EmbeddingCapability | str = "It is not known how embeddings of this model are made."
    scoring: ScoringCapability | str = "It is not known how this model scores."


def capabilities(model: Path, options: ServeOptions, ready: EngineFacts, tokenizer: Tokenizer) -> Capabilities:
    """Of a model that the engine has loaded. Raises ModelError for options that the model does not support."""
    config = read_json(model / "config.json", missing_ok=True) if model.is_dir() else {}
    embedding = _embedding(model, options, ready, config)
    ends_in = {"vocabulary": "", "labels": "a classification head", "none": "hidden states"}[ready.head]
    return Capabilities(
        no_text=f"The model ends in {ends_in}, so it cannot generate text." if ends_in else "",
        embedding=embedding,
        scoring=_scoring(options, ready, config, embedding, tokenizer),
    )


def _embedding(
    model: Path, options: ServeOptions, ready: EngineFacts, config: Mapping[str, Any]
) -> EmbeddingCapability | str:
    is_encoder = cache_groups.keeps_nothing(ready.attentions)
    usual: HiddenOf = "mean" if is_encoder else "last"
    kind: HiddenOf = usual if options.pooling == "auto" else options.pooling
    normalize, declared = True, options.pooling != "auto" or ready.head == "none"
    if modules := sentence_modules.read(model):
        names = [module.name for module in modules]
        if refusal := sentence_modules.refusal(modules):
            return refusal
        normalize, declared = "Normalize" in names, True
        if options.pooling == "auto":
            mode = _mode(model / modules[names.index("Pooling")].path) if "Pooling" in names else "lasttoken"
            if mode not in _SERVED_MODES:
                return (
                    f"The checkpoint requests pooling {mode}, which is not supported here; lasttoken, mean and cls are."
                )
            kind = _SERVED_MODES[mode]
    elif (mode := _of_gguf(model)) and options.pooling == "auto":
        if mode not in _SERVED_MODES:
            return f"The file requests pooling {mode}, which is not supported here; lasttoken, mean and cls are."
        kind, declared = _SERVED_MODES[mode], True
    elif ready.head == "labels" and options.pooling == "auto":
        return "The model ends in a classification head; start it with --pooling last or mean to get embeddings."
    if kind == "cls" and not is_encoder:
        return (
            "Pooling cls is not supported here: the first token of this model sees nothing of the text; lasttoken and"
            " mean are."
        )
    prompts = _prompts(model)
    if options.normalize != "auto":
        normalize = options.normalize == "always"
    sizes = config.get("matryoshka_dimensions")
    sizes = tuple(size for size in sizes if isinstance(size, int)) if isinstance(sizes, list) else ()
    return EmbeddingCapability(
        kind=kind,
        normalize=normalize,
        size=ready.hidden_size,
        declared=declared,
        shortens=options.matryoshka or config.get("is_matryoshka") is True or bool(sizes),
        sizes=() if options.matryoshka else sizes,
        prompts=prompts.prompts,
        prompt=prompts.prompts.get(prompts.default_prompt_name or "", ""),
    )


def _scoring(
    options: ServeOptions,
    ready: EngineFacts,
    config: Mapping[str, Any],
    embedding: EmbeddingCapability | str,
    tokenizer: Tokenizer,
) -> ScoringCapability | str:
    if options.scoring == "similarity":
        return _similarity(embedding) if isinstance(embedding, EmbeddingCapability) else embedding
    tokens = config.get("classifier_from_token")
    if options.scoring == "yes-no" or (tokens and ready.head == "vocabulary"):
        if ready.head != "vocabulary":
            raise ModelError(
                "--scoring yes-no needs a model that generates text; this one has no vocabulary at its end"
            )
        words = JUDGEMENTS if options.scoring == "yes-no" else tokens
        return ScoringCapability(
            kind="judgement", pooling=PoolingConfig(kind="tokens", token_ids=_token_ids(words, tokenizer))
        )
    if ready.head == "labels":
        if ready.num_labels != 1:
            return f"The model's classification head has {ready.num_labels} labels; a score needs a head with one."
        return _label(ready, config)
    if isinstance(embedding, EmbeddingCapability) and embedding.declared:
        return _similarity(embedding)
    return (
        "The model has no classification head and no files of an embedding model, so it has no scores; start it with "
        "--pooling last or mean to score by the similarity of embeddings, or with --scoring yes-no if it is a reranker "
        "that answers yes or no."
    )


def _label(ready: EngineFacts, config: Mapping[str, Any]) -> ScoringCapability | str:
    """By the one label of a classification head; cross-encoders say what becomes of its logit."""
    named = config.get("sentence_transformers")
    given = named.get("activation_fn") if isinstance(named, Mapping) else None
    given = given or config.get("sbert_ce_default_activation_function") or "Sigmoid"
    activation = str(given).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        return f"The checkpoint's scores go through an activation {activation}; Sigmoid and Identity are supported."
    head_of: HiddenOf = "last"
    if cache_groups.keeps_nothing(ready.attentions):
        head_of = "mean" if config.get("classifier_pooling") == "mean" else "cls"
    pooling = PoolingConfig(kind="labels", head_of=head_of)
    return ScoringCapability(kind="label", pooling=pooling, is_probability=_ACTIVATIONS[activation])


def _similarity(embedding: EmbeddingCapability) -> ScoringCapability:
    return ScoringCapability(kind="similarity", pooling=PoolingConfig(kind=embedding.kind))


def _token_ids(words: object, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Ids of the tokens for a wrong and for a right document. Raises ModelError where they are not single tokens."""
    if not isinstance(words, Sequence) or len(words) != len(JUDGEMENTS):
        raise ModelError("config.json: classifier_from_token must hold two tokens, as [no, yes]")
    ids = {str(word): tokenizer.encoder.token_to_id(str(word)) for word in words}
    if missing := [word for word, token_id in ids.items() if token_id is None]:
        raise ModelError(f"--scoring yes-no: {missing[0]!r} is not one token of this model")
    return tuple(token_id for token_id in ids.values() if token_id is not None)


class _Prompts(msgspec.Struct):
    prompts: dict[str, str] = {}
    default_prompt_name: str | None = None


def _prompts(model: Path) -> _Prompts:
    """What sentence-transformers puts before texts. Raises ModelError."""
    return sentence_modules.decoded(model / "config_sentence_transformers.json", _Prompts) or _Prompts()


def _of_gguf(model: Path) -> str:
    """How a GGUF file says that it is pooled, in the words of sentence-transformers; "" where it says nothing."""
    if not gguf.is_gguf(model):
        return ""
    file = gguf.read(model)
    return _GGUF_MODES.get(file.integer(f"{file.text('general.architecture')}.pooling_type", 0), "of an unknown kind")


def _mode(folder: Path) -> str:
    """How a Pooling module pools, in the words of sentence-transformers; several ways at once are joined by +."""
    config = read_json(folder / "config.json", missing_ok=True)
    named = config.get("pooling_mode")
    if isinstance(named, str):
        return named
    return "+".join(mode for key, mode in _MODES.items() if config.get(key) is True) or "mean"
