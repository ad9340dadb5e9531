"""Build the tokenizer that a GGUF file carries as lists: pieces, merges or scores, kinds of tokens, a name for the
splitting rule. Called by the server and for grammars; the result is the same library's tokenizer as elsewhere.

Two models exist in the families served here: `gpt2` (byte-level BPE with merges) and `llama` (SentencePiece's BPE, with
scores and bytes as a fallback).
"""

from array import array
from typing import Any, Final

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Encoder

from kvasir_runtime.errors import ModelError
from kvasir_runtime.gguf.reader import GgufFile

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
BLANK: Final = "\u2581"
# Rules by which texts are split before merging, as the models' own tokenizers have them.
_CONTRACTIONS: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3: Final = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_QWEN2: Final = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
)
_DEFAULT: Final = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")
_RULES: Final[dict[str, tuple[str, ...]]] = {
    "": _DEFAULT,
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "phi-2", "gigachat", "mellum", "olmo", "mpt", "jais"), (_GPT2,)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), (r"\p{N}", _GPT2)),
    **dict.fromkeys(
        ("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "lfm2", "smaug-bpe", "dbrx"), (_LLAMA3,)
    ),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "stablelm2", "megrez"), (_QWEN2,)),
    "tekken": (_TEKKEN,),
}
_WHOLE_WORDS: Final = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "midm-2.0", "lfm2", "tekken"})
"""Rules whose models take a word that is a piece as it is, whatever merges make of it; they also begin with a BOS."""
_NFC: Final = frozenset({"qwen2", "kormo", "megrez"})


def encoder(file: GgufFile) -> Encoder:
    """The tokenizer inside. Raises ModelError for one that is missing, inconsistent or of another kind."""
    kind, tokens = file.text("tokenizer.ggml.model"), file.texts("tokenizer.ggml.tokens")
    if not kind or not tokens:
        raise ModelError(f"{file.path} has no tokenizer inside (tokenizer.ggml.model and .tokens)")
    if kind not in ("gpt2", "llama"):
        raise ModelError(f"{file.path}: tokenizer.ggml.model {kind} is not supported; expected gpt2 or llama")
    vocab = {piece: index for index, piece in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise ModelError(f"{file.path}: tokenizer.ggml.tokens holds {len(tokens) - len(vocab)} pieces twice")
    types = file.numbers("tokenizer.ggml.token_type") or array("i", [NORMAL]) * len(tokens)
    if len(types) != len(tokens):
        raise ModelError(f"{file.path}: {len(types)} types for {len(tokens)} tokens")
    try:
        built = _byte_level(file, vocab) if kind == "gpt2" else _sentencepiece(file, tokens, types)
        add_tokens(built, tokens, types)
    except ModelError:
        raise
    except Exception as error:  # the library raises bare Exception
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{file.path}: the tokenizer inside is inconsistent: {reason}") from error
    _surround(built, file, tokens, begins=kind == "llama" or file.text("tokenizer.ggml.pre") in _WHOLE_WORDS)
    return built


def special_tokens(file: GgufFile) -> dict[str, str]:
    """The pieces that chat templates know by name, such as bos_token."""
    tokens = file.texts("tokenizer.ggml.tokens")
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator", "mask": "mask"}
    found = {}
    for name, key in named.items():
        index = file.integer(f"tokenizer.ggml.{key}_token_id", -1)
        if 0 <= index < len(tokens):
            found[f"{name}_token"] = tokens[index]
    return found


def _byte_level(file: GgufFile, vocab: dict[str, int]) -> Encoder:
    rule = file.text("tokenizer.ggml.pre")
    if rule not in _RULES:
        known = ", ".join(filter(None, _RULES))
        raise ModelError(f"{file.path}: tokenizer.ggml.pre {rule} is not supported; expected one of {known}")
    merges = []
    for merge in file.texts("tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    built = Encoder(models.BPE(vocab=vocab, merges=merges, ignore_merges=rule in _WHOLE_WORDS))
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _RULES[rule]]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.pre_tokenizer = pre_tokenizers.Sequence([*splits, bytes_])
    if rule in _NFC:
        built.normalizer = normalizers.NFC()
    built.decoder = decoders.ByteLevel()
    return built


def _sentencepiece(file: GgufFile, tokens: list[str], types: "array[Any]") -> Encoder:
    scores = file.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelError(f"{file.path}: {len(scores)} scores for {len(tokens)} tokens")
    unknown = file.integer("tokenizer.ggml.unknown_token_id", types.index(UNKNOWN) if UNKNOWN in types else -1)
    blank = file.flag("tokenizer.ggml.add_space_prefix", True)
    return byte_fallback_bpe(tokens, scores, types, unknown=unknown, blank=blank)


def byte_fallback_bpe(
    tokens: list[str], scores: "array[Any]", types: "array[Any]", *, unknown: int, blank: bool
) -> Encoder:
    """SentencePiece's BPE: pieces with scores and types, bytes for what they lack.

    unknown: id of the unknown piece, -1 where there is none. blank: a text begins with one, which its answer lacks.
    """
    vocab = {piece: index for index, piece in enumerate(tokens)}
    built = Encoder(
        models.BPE(
            vocab=vocab,
            merges=merges_of(vocab, scores, types),
            unk_token=tokens[unknown] if 0 <= unknown < len(tokens) else None,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    marks: list[normalizers.Normalizer] = [normalizers.Prepend(BLANK)] if blank else []
    built.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", BLANK)])
    strip = [decoders.Strip(" ", 1, 0)] if blank else []
    built.decoder = decoders.Sequence([decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return built


def merges_of(vocab: dict[str, int], scores: "array[Any]", types: "array[Any]") -> list[tuple[str, str]]:
    """Merges in the order in which SentencePiece makes them: the pair whose joined piece has the best score first."""
    ranked = []
    for piece, index in vocab.items():
        if types[index] in (NORMAL, USER_DEFINED):
            for cut in range(1, len(piece)):
                left, right = vocab.get(piece[:cut]), vocab.get(piece[cut:])
                if left is not None and right is not None:
                    ranked.append((-scores[index], index, left, right, cut, piece))
    ranked.sort()
    return [(piece[:cut], piece[cut:]) for *_, cut, piece in ranked]


def add_tokens(built: Encoder, tokens: list[str], types: "array[Any]") -> None:
    """Pieces that are found in a text before anything else: control tokens, hidden in answers, and a user's own."""
    special = [
        AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types, strict=True) if k == CONTROL
    ]
    own = [AddedToken(t, normalized=False) for t, k in zip(tokens, types, strict=True) if k == USER_DEFINED]
    unknown = [
        AddedToken(t, special=True, normalized=False) for t, k in zip(tokens, types, strict=True) if k == UNKNOWN
    ]
    built.add_special_tokens(special + unknown)
    built.add_tokens(own)


def surround(built: Encoder, before: tuple[str, int] | None, behind: tuple[str, int] | None) -> None:
    """What is put around a text, and around each of a pair, as pieces with their ids; None for nothing."""
    if pieces := [piece for piece in (before, behind) if piece is not None]:
        first, second = (
            [*([f"{before[0]}:{kind}"] if before else []), text, *([f"{behind[0]}:{kind}"] if behind else [])]
            for kind, text in enumerate(("$A:0", "$B:1"))
        )
        both = {"single": first, "pair": [*first, *second]}
        built.post_processor = processors.TemplateProcessing(**both, special_tokens=pieces)


def _surround(built: Encoder, file: GgufFile, tokens: list[str], *, begins: bool) -> None:
    """A BOS, an EOS, where the file says so."""
    found: list[tuple[str, int] | None] = []
    for key, default in (("bos", begins), ("eos", False)):
        index = file.integer(f"tokenizer.ggml.{key}_token_id", -1)
        is_put = file.flag(f"tokenizer.ggml.add_{key}_token", default) and 0 <= index < len(tokens)
        found.append((tokens[index], index) if is_put else None)
    surround(built, *found)
