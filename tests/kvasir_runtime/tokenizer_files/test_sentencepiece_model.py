"""tokenizer.model gives the ids of SentencePiece's own rules; files are written by generated code of the format."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import sentencepiece_model_pb2_new as format_

from kvasir_runtime.errors import ModelError
from kvasir_runtime.tokenizer_files import build

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
UNIGRAM, BPE = 1, 2
WORDS = ["▁t", "he", "▁the", "▁a", "an", "▁an", "nd", "▁and", "▁p", "la", "▁pla", "▁plan", "in", "ing", "▁▁"]
LETTERS = ["▁", "t", "h", "e", "a", "n", "d", "p", "l", "i", "g", "ü"]
TEXTS = ["the plan and the thing", "an", "  two  blanks ", "Grüße, 🙂", "a\nb", "the<tool>plan"]


def written(folder: Path, *, kind: int = BPE, settings: dict[str, Any] | None = None, **rules: Any) -> Path:
    """A directory with a small model, whose pieces of letters have descending scores."""
    model = format_.ModelProto()

    def add(piece: str, score: float, type_: int) -> None:
        model.pieces.add(piece=piece, score=score, type=type_)

    add("<unk>", 0, UNKNOWN)
    add("<s>", 0, CONTROL)
    add("</s>", 0, CONTROL)
    add("<tool>", 0, USER)
    for value in range(256):
        add(f"<0x{value:02X}>", 0, BYTE)
    for rank, piece in enumerate(WORDS + LETTERS):
        add(piece, -1.0 - rank, NORMAL)
    model.trainer_spec.model_type = kind
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.pad_id = -1
    model.normalizer_spec.remove_extra_whitespaces = False
    for name, value in rules.items():
        setattr(model.normalizer_spec, name, value)
    (folder / "tokenizer.model").write_bytes(model.SerializeToString())
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def by_score(text: str, *, blank: bool = True) -> list[int]:
    """SentencePiece's BPE: the adjacent pair whose piece has the best score is joined, until there is none."""
    ranks = {piece: rank for rank, piece in enumerate(WORDS + LETTERS)}
    parts = list(("▁" if blank else "") + text.replace(" ", "▁"))
    while True:
        pairs = [
            (ranks[left + right], at)
            for at, (left, right) in enumerate(itertools.pairwise(parts))
            if left + right in ranks
        ]
        if not pairs:
            break
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    ids: list[int] = []
    for part in parts:
        ids += [260 + ranks[part]] if part in ranks else [4 + value for value in part.encode()]
    return ids


@pytest.mark.parametrize("text", [text for text in TEXTS if "<tool>" not in text])
def test_ids_are_those_of_the_rule(tmp_path: Path, text: str) -> None:
    built = build.encoder(written(tmp_path))
    assert built.encode(text).ids == [1, *by_score(text)]
    assert built.decode(by_score(text)) == text


@pytest.mark.parametrize("legacy", [True, False])
def test_a_blank_after_special_tokens_is_older_checkpoints_way(tmp_path: Path, legacy: bool) -> None:
    built = build.encoder(written(tmp_path, settings={"legacy": legacy, "add_bos_token": False}))
    assert built.encode("the<tool>plan").ids == [*by_score("the"), 3, *by_score("plan", blank=legacy)]
    # As transformers converts newer files: a text that begins with a blank gets no other.
    for text in TEXTS if legacy else [text for text in TEXTS if not text.startswith(" ")]:
        assert built.decode(built.encode(text).ids, skip_special_tokens=False).replace("<tool> ", "<tool>") == text


def test_without_a_blank_in_front(tmp_path: Path) -> None:
    built = build.encoder(written(tmp_path, add_dummy_prefix=False))
    assert built.encode("the plan").ids == [1, *by_score("the plan", blank=False)]
    assert built.decode(built.encode("the plan").ids) == "the plan"


@pytest.mark.parametrize("kind", [BPE, UNIGRAM])
def test_rules_of_normalization_are_followed(tmp_path: Path, kind: int) -> None:
    built = build.encoder(written(tmp_path, kind=kind, remove_extra_whitespaces=True))
    assert built.encode("  the   plan ").ids == built.encode("the plan").ids
    (tmp_path / "as").mkdir()
    kept = build.encoder(written(tmp_path / "as", kind=kind))
    assert kept.encode("the   plan").ids != built.encode("the plan").ids


def test_bos_eos_and_added_tokens_follow_the_settings(tmp_path: Path) -> None:
    added = {str(260 + len(WORDS + LETTERS)): {"content": "<|im_end|>", "special": True}}
    settings = {"add_bos_token": False, "add_eos_token": True, "added_tokens_decoder": added}
    built = build.encoder(written(tmp_path, settings=settings))
    assert built.encode("an<|im_end|>").ids == [*by_score("an"), 260 + len(WORDS + LETTERS), 2]
    with pytest.raises(ModelError, match="has id 999 and is number 287"):
        build.encoder(written(tmp_path, settings={"added_tokens_decoder": {"999": {"content": "<x>"}}}))


def test_unigram_takes_the_likeliest_pieces(tmp_path: Path) -> None:
    """Scores are log probabilities: with these, the fewest and best pieces."""
    built = build.encoder(written(tmp_path, kind=UNIGRAM, remove_extra_whitespaces=True))
    assert built.encode(" the   plan ").tokens == ["<s>", "▁the", "▁plan"]
    assert built.decode(built.encode("the plan").ids) == "the plan"
    assert built.encode("é", add_special_tokens=False).tokens == ["▁", "<0xC3>", "<0xA9>"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "it has no pieces"),
        (b"\x0a\x7f", "ends before the end of a field"),
        (b"\xff" * 11, "ends before the end of a number"),
        (b"\x0b", "unknown kind 3"),
        (b"\x0a\x02\x08\x01", "field 1 is a number"),
        (b"\x0a\x03\x0a\x01a\x12\x03\x1a\x01a", "field 3 is no number"),
        (b"\x0a\x05\x0a\x01a\x18\xff\x0f" + b"\x0a\x0f\x0a\x01b\x18" + b"\xff" * 9 + b"\x01", "SentencePiece model"),
        (b"\x0a\x04\x0a\x02\xff\xfe", "not a SentencePiece model"),
        (b"\x0a\x03\x0a\x01a" * 2, "holds a piece twice"),
        (b"\x0a\x03\x0a\x01a\x12\x02\x18\x03", "type word is not supported"),
    ],
)
def test_damage_is_one_line(tmp_path: Path, raw: bytes, message: str) -> None:
    (tmp_path / "tokenizer.model").write_bytes(raw)
    with pytest.raises(ModelError, match=message) as caught:
        build.encoder(tmp_path)
    assert "tokenizer.model" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("begins", "ends"), [(True, True), (True, False), (False, True), (False, False)])
def test_each_text_of_a_pair_has_what_is_around_a_text(tmp_path: Path, *, begins: bool, ends: bool) -> None:
    encoder = build.encoder(written(tmp_path, settings={"add_bos_token": begins, "add_eos_token": ends}))
    one, other = encoder.encode("the plan"), encoder.encode("an")
    both = encoder.encode("the plan", "an")
    assert both.ids == [*one.ids, *other.ids]
    assert both.type_ids == [*([0] * len(one.ids)), *([1] * len(other.ids))]
    assert [encoder.decode([one.ids[-1]], skip_special_tokens=False) == "</s>", one.ids[0] == 1] == [ends, begins]
