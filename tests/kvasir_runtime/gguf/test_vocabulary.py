"""The tokenizer inside a GGUF file gives the ids, texts and prompts of the tokenizer that it was written from."""

import heapq
import itertools
import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Encoder

from fakes import checkpoints, ggufs, tiny_tokenizer
from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError
from kvasir_runtime.frontend import tokenizer
from kvasir_runtime.gguf import vocabulary

CORPUS = (
    "", " ", "  two  blanks", "Hello, world! It's 2024 and we'RE 12345 ok", "\n\n\tindented\r\n  more\n ", "naïve",
    "café", "Größe ΑΒΓ δ ж", "你好世界，今天天气怎么样？", "こんにちは 안녕하세요",
    "🙂🚀👩‍👩‍👧 e\u0301 ﬁ", "x=3.14;y+=1//2",
    "a" * 300, "<|im_start|>user\nhi<|im_end|>\n", "\u0000\u007f\u200b\ufeff", "مرحبا بالعالم שלום",
    "don't DON'T ''s",
    "camelCaseWordsHTTP2",
)  # fmt: skip
# The splitting rule of each family as its own tokenizer.json writes it.
CONTRACTED = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TEKKEN = rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*|\p{{N}}" + REST.replace(
    r"[\r\n]*", r"[\r\n/]*", 1
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
SPLITS: dict[str, Any] = {
    "gpt-2": pre_tokenizers.ByteLevel(add_prefix_space=False),
    "llama-bpe": pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(CONTRACTED + r"\p{N}{1,3}" + REST), "isolated"), BYTES]
    ),
    "qwen2": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CONTRACTED + r"\p{N}" + REST), "isolated"), BYTES]),
    "tekken": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(TEKKEN), "isolated"), BYTES]),
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}


def trained(rule: str) -> Encoder:
    """A byte-level tokenizer of a family, with the corpus in its merges so that splits show in the ids."""
    built = Encoder(models.BPE(ignore_merges=rule in ("llama-bpe", "tekken")))
    built.pre_tokenizer = SPLITS[rule]
    built.decoder = decoders.ByteLevel()
    if rule == "qwen2":
        built.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=list(checkpoints.SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    built.train_from_iterator([*CORPUS, checkpoints.TRAINING_TEXT, tiny_tokenizer.TEXT] * 2, trainer)
    return built


def file_of(tmp_path: Path, encoder: Encoder | None = None, **keys: Any) -> Path:
    source = checkpoints.write(tmp_path / "model", checkpoints.Shape(num_layers=1, vocab_size=720))
    if encoder is not None:
        encoder.save(str(source / "tokenizer.json"))
    return ggufs.write(source, tmp_path / "model.gguf", **keys)


@pytest.mark.parametrize("rule", SPLITS)
def test_ids_and_texts_are_those_of_the_source(tmp_path: Path, rule: str) -> None:
    source = trained(rule)
    found = tokenizer.load(file_of(tmp_path, source, tokenizer__ggml__pre=rule))
    for text in (*CORPUS, tiny_tokenizer.TEXT, checkpoints.TRAINING_TEXT):
        ids = source.encode(text, add_special_tokens=False).ids
        assert list(found.encode(text, special=False, limit=10_000)) == ids
        assert found.decode(ids) == source.decode(ids)
    assert found.vocab_size == 720
    assert found.spelling == "byte-level"


def test_template_and_special_tokens_are_those_of_the_file(tmp_path: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    path = file_of(tmp_path, tokenizer__chat_template=template, tokenizer__ggml__bos_token_id=1)
    assert tokenizer.load(path).rendered([{"role": "user", "content": "hi"}], {}) == "<|im_start|>[hi]"
    silent = file_of(tmp_path, tokenizer__chat_template=None)
    assert tokenizer.load(silent).template is None


@pytest.mark.parametrize(
    ("keys", "begin", "end"),
    [
        ({}, [], []),
        ({"add_bos_token": True}, [1], []),
        ({"add_eos_token": True}, [], [0]),
        ({"pre": "llama-bpe", "add_bos_token": None}, [1], []),
        ({"pre": "llama-bpe", "add_bos_token": False}, [], []),
    ],
)
def test_bos_and_eos_are_put_where_the_file_says(
    tmp_path: Path, keys: dict[str, Any], begin: list[int], end: list[int]
) -> None:
    named = {f"tokenizer__ggml__{key}": value for key, value in keys.items()} | {"tokenizer__ggml__bos_token_id": 1}
    found = tokenizer.load(file_of(tmp_path, **named))
    plain = list(found.encode("plan", special=False, limit=99))
    assert list(found.encode("plan", special=True, limit=99)) == [*begin, *plain, *end]


PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]


def sentencepiece(tmp_path: Path) -> tuple[Path, dict[str, float]]:
    """A file with SentencePiece's model, and its scores: pieces made of shorter ones, better first."""
    words = [
        "▁",
        "a",
        "e",
        "h",
        "l",
        "n",
        "o",
        "p",
        "t",
        "th",
        "▁t",
        "the",
        "▁th",
        "▁the",
        "pl",
        "an",
        "pla",
        "plan",
        "▁p",
    ]
    words += ["▁pla", "▁plan", "ne", "no", "lo", "llo", "he", "hello", "▁he", "ö", "好", "▁▁", "▁▁▁▁"]
    tokens = PIECES + words
    scores = [0.0] * len(PIECES) + [-float(rank) for rank in range(len(words))]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(words)
    source = checkpoints.write(tmp_path / "model", checkpoints.Shape(num_layers=1, vocab_size=len(tokens)))
    keys = {"model": "llama", "pre": None, "tokens": tokens, "scores": scores, "token_type": kinds, "merges": None}
    keys |= {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
        "add_bos_token": True,
        "padding_token_id": None,
    }
    path = ggufs.write(source, tmp_path / "m.gguf", **{f"tokenizer__ggml__{key}": value for key, value in keys.items()})
    return path, dict(zip(words, scores[len(PIECES) :], strict=True))


def greedy(text: str, scores: dict[str, float]) -> list[str]:
    """SentencePiece's BPE by its definition: join the neighbours whose joined piece scores best, leftmost first."""
    parts: list[str | None] = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        live = [index for index, part in enumerate(parts) if part is not None]
        heap = [
            (-scores[parts[i] + parts[j]], i, j)  # type: ignore[operator]
            for i, j in itertools.pairwise(live)
            if parts[i] + parts[j] in scores  # type: ignore[operator]
        ]
        if not heap:
            break
        _, i, j = heapq.nsmallest(1, heap)[0]
        parts[i], parts[j] = parts[i] + parts[j], None  # type: ignore[operator]
    pieces = []
    for part in parts:
        if part is not None:
            pieces += [part] if part in scores else [f"<0x{byte:02X}>" for byte in part.encode()]
    return pieces


@pytest.fixture(scope="module")
def spm(tmp_path_factory: pytest.TempPathFactory) -> tuple[tokenizer.Tokenizer, dict[str, float]]:
    path, scores = sentencepiece(tmp_path_factory.mktemp("spm"))
    return tokenizer.load(path), scores


@settings(max_examples=300, deadline=None)
@given(text=st.one_of(st.text(max_size=30), st.text("the plano▁ö好", max_size=40)))
def test_sentencepiece_joins_the_best_pair_first(spm: tuple[tokenizer.Tokenizer, dict[str, float]], text: str) -> None:
    found, scores = spm
    text = text.replace("<", "").replace("\u2581", "")
    ids = found.encode(text, special=False, limit=10_000)
    assert [found.piece(index) for index in ids] == greedy(text, scores)
    assert found.decode(ids) == text


def test_sentencepiece_begins_with_bos_and_writes_bytes(spm: tuple[tokenizer.Tokenizer, dict[str, float]]) -> None:
    found, _ = spm
    assert found.encode("the plan", special=True, limit=99)[0] == 1
    assert found.spelling == "byte-fallback"
    assert found.token_bytes(3 + 0xE2) == b"\xe2"


def test_prefix_blank_is_left_out_where_the_file_says(tmp_path: Path) -> None:
    path, _ = sentencepiece(tmp_path)
    file = gguf.read(path)
    changed = gguf.GgufFile(
        path=path, tensors=file.tensors, metadata={**file.metadata, "tokenizer.ggml.add_space_prefix": False}
    )
    built = vocabulary.encoder(changed)
    assert built.encode("the", add_special_tokens=False).tokens == ["the"]
    assert built.decode(built.encode(" the", add_special_tokens=False).ids) == " the"


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"model": None}, "has no tokenizer inside"),
        ({"model": "bert"}, "tokenizer.ggml.model bert is not supported"),
        ({"pre": "novel-7b"}, "tokenizer.ggml.pre novel-7b is not supported"),
        ({"model": "llama"}, "0 scores for 720 tokens"),
        ({"token_type": [1, 2]}, "2 types for 720 tokens"),
        ({"tokens": ["a"] * 720}, "holds 719 pieces twice"),
        ({"merges": ["qqq zzz"]}, "inconsistent"),
    ],
)
def test_tokenizer_that_cannot_be_is_named(tmp_path: Path, keys: dict[str, Any], reason: str) -> None:
    path = file_of(tmp_path, **{f"tokenizer__ggml__{key}": value for key, value in keys.items()})
    with pytest.raises(ModelError, match=reason) as caught:
        tokenizer.load(path)
    assert str(path) in str(caught.value)


def test_merges_follow_scores() -> None:
    vocab = {"a": 0, "b": 1, "ab": 2, "abb": 3, "bb": 4}
    scores = array("f", [0, 0, -2, -1, -3])
    assert vocabulary.merges_of(vocab, scores, array("i", [1] * 5)) == [
        ("a", "bb"), ("ab", "b"), ("a", "b"), ("b", "b"),
    ]  # fmt: skip


def test_source_files_and_gguf_agree_on_a_chat(tmp_path: Path) -> None:
    path = file_of(tmp_path)
    messages = [{"role": "user", "content": "Plan?"}]
    assert tokenizer.load(path).rendered(messages, {}) == tokenizer.load(tmp_path / "model").rendered(messages, {})
    assert json.loads((tmp_path / "model" / "config.json").read_text())["vocab_size"] == 720
