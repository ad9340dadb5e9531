"""tekken.json gives the ids of its own rule: split, then merge by the lowest rank."""

import base64
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import regex

from kvasir_runtime.errors import ModelError
from kvasir_runtime.tokenizer_files import build

PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PIECES = [bytes([value]) for value in range(256)] + [
    *(
        b"th",
        b"he",
        b"the",
        b" the",
        b"an",
        b" an",
        b"and",
        b" and",
        b"in",
        b"ing",
        "ü".encode(),
        b" plan",
        b" pl",
        b" p",
        b"pl",
    ),
    *("🙂".encode()[:2], "🙂".encode(), b"never", b"beyond"),
]
TEXTS = ["", "the plan and the thing", "Grüße, 🙂 über\n\n  12345 and!", " pl", "ananand", "a<s>b", "never"]
SPECIAL = ["<unk>", "<s>", "</s>", "[INST]"]


def document(**config: Any) -> dict[str, Any]:
    """The last pieces are beyond the vocabulary's size, as in real files."""
    sizes = {"pattern": PATTERN, "default_vocab_size": 10 + len(PIECES) - 2, "default_num_special_tokens": 10}
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(piece).decode(), "token_str": None}
        for rank, piece in enumerate(PIECES)
    ]
    special = [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(SPECIAL)]
    return {"config": sizes | config, "vocab": vocab, "special_tokens": special}


def folder_with(tmp_path: Path, tekken: dict[str, Any] | str) -> Path:
    (tmp_path / "tekken.json").write_text(tekken if isinstance(tekken, str) else json.dumps(tekken))
    return tmp_path


def by_rank(text: str) -> list[int]:
    """The rule as tiktoken has it, on bytes."""
    ranks = {piece: rank for rank, piece in enumerate(PIECES[:-2])}
    ids: list[int] = []
    for word in regex.findall(PATTERN, text):
        parts = [word.encode()] if word.encode() in ranks else [bytes([value]) for value in word.encode()]
        while len(parts) > 1:
            pairs = [
                (ranks.get(left + right, 1 << 30), at) for at, (left, right) in enumerate(itertools.pairwise(parts))
            ]
            rank, at = min(pairs)
            if rank == 1 << 30:
                break
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids += [10 + ranks[part] for part in parts]
    return ids


@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_rule(tmp_path: Path, text: str) -> None:
    built = build.encoder(folder_with(tmp_path, document()))
    assert built.encode(text.replace("<s>", "|"), add_special_tokens=False).ids == by_rank(text.replace("<s>", "|"))
    assert built.decode(built.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_special_tokens_come_first_and_a_text_begins_with_one(tmp_path: Path) -> None:
    built = build.encoder(folder_with(tmp_path, document()))
    assert built.encode("[INST]in").ids == [1, 3, 10 + PIECES.index(b"in")]
    assert [built.id_to_token(index) for index in (2, 9)] == ["</s>", "<SPECIAL_9>"]
    assert built.get_vocab_size() == 10 + len(PIECES) - 2
    assert built.decode([1, 3, 10 + PIECES.index(b"in")]) == "in"


def test_files_without_a_list_have_the_first_versions_special_tokens(tmp_path: Path) -> None:
    built = build.encoder(folder_with(tmp_path, document() | {"special_tokens": None}))
    assert built.token_to_id("[TOOL_CALLS]") == 9


@pytest.mark.parametrize(
    ("tekken", "message"),
    [
        ("{", "not a tekken file"),
        ({"config": {}}, "not a tekken file"),
        (document(default_vocab_size=3), "a vocabulary of 3 with 10 special tokens"),
        (document(pattern="("), "is not a tokenizer"),
        (document() | {"vocab": [{"token_bytes": "?"}]}, "not a tekken file"),
        (document() | {"vocab": [{"token_bytes": "YQ=="}] * 2}, "holds a piece twice"),
    ],
)
def test_damage_is_one_line(tmp_path: Path, tekken: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        build.encoder(folder_with(tmp_path, tekken))
    assert "\n" not in str(caught.value)
    assert "tekken.json" in str(caught.value)
