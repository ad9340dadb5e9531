"""Where a text may be split so that the token ids of its parts, one after another, are those of the whole.

Decided once for each tokenizer, from its components; text_encoder.py splits long texts there. A place is between two
characters of certain kinds, such as the blank between two words. It is used only where that can be shown: every
component is of a kind that sees no further than the run of characters around a place, its splitting gives the same
pieces on both sides of it (tried for all short surroundings), and no token of the vocabulary reaches across.
"""

import json
import re
from collections.abc import Iterator
from itertools import product
from typing import Any, Final, NamedTuple

from tokenizers import AddedToken
from tokenizers import Tokenizer as Encoder

LOCAL_NORMALIZERS: Final = frozenset(
    {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "BertNormalizer", "Replace", "Prepend"}
)
LOCAL_PRE_TOKENIZERS: Final = frozenset(
    {"ByteLevel", "Split", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit", "BertPreTokenizer", "Metaspace"}
)
"""The others look at a whole text or at its length (Precompiled, FixedLength), or at scripts (UnicodeScripts)."""
NOT_LOCAL: Final = re.compile(r"\(\?<|\(\?[=!][^)]{3,}\)|\\[bBAzZGK]|\\[1-9]|[\^$]")
"""In a pattern whose escapes and classes were taken out: what looks back, far ahead, or at the ends of the text."""
SURROUNDINGS: Final = ("a", "Z", "é", "中", "1", " ", "\n", "\t", ".", "'", "\u0301", "_")
SCAN_CHARACTERS: Final = 1 << 18


class Split(NamedTuple):
    """A place between two parts. left: the first ends here; right: the second begins, behind a blank that is left out
    where the tokenizer puts one before every text."""

    left: int
    right: int


class _Kind(NamedTuple):
    """A kind of place. pattern: its characters. left, right: how many of them belong to each side; where they are fewer
    than all, a blank between them is left out. ends, begins: samples of both sides."""

    pattern: str
    left: int
    right: int
    ends: tuple[str, ...]
    begins: tuple[str, ...]


_LETTER: Final = r"[^\W\d_]"
_KINDS: Final = (
    _Kind(rf"{_LETTER} (?={_LETTER})", 1, 1, ("a", "中"), (" b", " S", " 字")),
    _Kind(rf"{_LETTER} (?={_LETTER})", 1, 2, ("a", "中"), ("b", "S", "字")),
    _Kind(rf"[^\s]\n(?={_LETTER})", 2, 2, ("a\n", ".\n", "。\n", "1\n"), ("b", "S", "字")),
    _Kind(rf"{_LETTER}(?=[,;，。、；])", 1, 1, ("a", "中"), (",", "，", "。")),
)


class SplitPoints:
    """The places of one tokenizer. Takes tens of milliseconds to make, and is made when a text is long enough."""

    def __init__(self, encoder: Encoder) -> None:
        kinds = [kind for kind in _KINDS if _is_exact(kind, encoder)] if _is_local(encoder) else []
        kinds = [kind for kind in kinds if kind is not _KINDS[1] or _KINDS[0] not in kinds]
        self._kinds = tuple(kinds)
        self._pattern = re.compile("|".join(f"({kind.pattern})" for kind in kinds)) if kinds else None

    @property
    def exist(self) -> bool:
        """Whether this tokenizer has any."""
        return self._pattern is not None

    def first(self, text: str, start: int, end: int) -> Split | None:
        """The first place whose characters begin within text[start:end]."""
        for begin in range(start, end, SCAN_CHARACTERS):  # step by step, as a search holds the interpreter
            found = next(self._found(text, begin, min(begin + SCAN_CHARACTERS, end)), None)
            if found is not None:
                return found
        return None

    def _found(self, text: str, start: int, end: int) -> Iterator[Split]:
        if self._pattern is None:
            return
        for match in self._pattern.finditer(text, start, min(end + 3, len(text))):
            kind = self._kinds[(match.lastindex or 1) - 1]
            split = Split(match.start() + kind.left, match.start() + kind.right)
            letters = [text[at] for at in (match.start(), match.end()) if at < len(text)]
            # \w counts some numbers as letters, which splitting rules do not.
            if all(one.isalpha() or not one.isalnum() for one in letters):
                yield split


def _is_local(encoder: Encoder) -> bool:
    """Whether every component sees no further than what surrounds a place."""
    normalizers, splitters = components(encoder.normalizer), components(encoder.pre_tokenizer)
    words = any(one["type"] in {"Whitespace", "WhitespaceSplit", "BertPreTokenizer"} for one in splitters)
    kind = type(encoder.model).__name__
    return (
        {one["type"] for one in normalizers} <= LOCAL_NORMALIZERS
        and {one["type"] for one in splitters} <= LOCAL_PRE_TOKENIZERS
        and all(_is_local_pattern(one.get("pattern")) for one in [*normalizers, *splitters])
        and not getattr(encoder.model, "dropout", None)
        # A word's best pieces depend on nothing outside of it; without words sums over a whole text are rounded.
        and (kind in {"BPE", "WordPiece", "WordLevel"} or (kind == "Unigram" and words))
        and all(map(_is_harmless, encoder.get_added_tokens_decoder().values()))
    )


def components(part: Any) -> list[dict[str, Any]]:
    """The settings of a tokenizer's normalizer or pre-tokenizer, its steps one by one."""
    return [] if part is None else _steps(json.loads(bytes(part.__getstate__())))


def _steps(document: dict[str, Any]) -> list[dict[str, Any]]:
    inner = document.get("normalizers", document.get("pretokenizers"))
    return [document] if inner is None else [step for one in inner for step in _steps(one)]


def _is_local_pattern(pattern: dict[str, str] | None) -> bool:
    if pattern is None or "Regex" not in pattern:
        return True
    source = re.sub(r"\\[^bBAzZGK1-9]", "x", pattern["Regex"])
    return NOT_LOCAL.search(re.sub(r"\[\^?\]?[^\]]*\]", "x", source)) is None


def _is_harmless(token: AddedToken) -> bool:
    """Whether an added token cannot lie across a place, nor take the blank of one."""
    content = token.content
    if re.search(rf"{_LETTER} $", content) or re.match(rf"[ \n]{_LETTER}", content):
        return False
    if any(re.search(kind.pattern.replace("(?=", "(?:"), content) for kind in _KINDS):
        return False
    return not (token.lstrip and content[:1].isalpha()) and not (token.rstrip and content[-1:].isalpha())


def _is_exact(kind: _Kind, encoder: Encoder) -> bool:
    """Whether both sides of a place are cut into pieces as they are in the whole, whatever surrounds it."""
    blank = " " if kind.right > kind.left else ""
    lefts = [before + end for before in map("".join, product(SURROUNDINGS, repeat=2)) for end in kind.ends]
    rights = [begin + after for begin in kind.begins for after in SURROUNDINGS]
    right_pieces = [_pieces(encoder, right) for right in rights]
    marks = set()
    for number, left in enumerate(lefts):
        left_pieces = _pieces(encoder, left)
        # Each with a third of the others: what a left side does depends on the kind of character that follows.
        for index in range(number % 3, len(rights), 3):
            whole, pieces = _pieces(encoder, left + blank + rights[index]), right_pieces[index]
            if whole == left_pieces + pieces:
                continue
            if whole != [*left_pieces[:-1], left_pieces[-1] + pieces[0], *pieces[1:]]:
                return False
            marks.add(pieces[0][0])
    return not marks or _never_crossed(encoder, marks)


def _pieces(encoder: Encoder, text: str) -> list[str]:
    """A text as the model is given it, piece by piece."""
    if encoder.normalizer is not None:
        text = encoder.normalizer.normalize_str(text)
    if encoder.pre_tokenizer is None:
        return [text]
    return [piece for piece, _ in encoder.pre_tokenizer.pre_tokenize_str(text)]


def _never_crossed(encoder: Encoder, marks: set[str]) -> bool:
    """Whether no token has one of the marks behind another character; then merges of both sides never meet.

    Only the mark of a blank counts: any other character is behind others in every vocabulary.
    """
    if type(encoder.model).__name__ != "BPE" or not marks <= {"\u2581", "Ġ"}:
        return False
    crossing = re.compile("|".join(f"[^{mark}]{mark}" for mark in marks))
    # One by one, as the whole vocabulary in one call would hold the interpreter.
    tokens = (encoder.id_to_token(token_id) for token_id in range(encoder.get_vocab_size(with_added_tokens=False)))
    return not any(crossing.search(token) for token in tokens if token)
