"""SentencePiece's tokenizer.model: pieces with scores, as BPE or as a unigram language model.

The file is a protobuf message of which a few fields matter (sentencepiece_model.proto); they are read here, so that
neither SentencePiece nor generated code is needed. Every length is checked against the bytes that are there.
"""

import struct
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Encoder

from kvasir_runtime.errors import ModelError
from kvasir_runtime.gguf import vocabulary
from kvasir_runtime.gguf.vocabulary import BLANK

_UNIGRAM, _BPE = 1, 2
_KINDS: Final = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class SentencePieceFile:
    """The fields of a file. types: as GGUF numbers them too. charsmap: normalization of characters, compiled."""

    pieces: list[str]
    scores: "array[float]"
    types: "array[int]"
    kind: int = _UNIGRAM
    byte_fallback: bool = False
    unknown_id: int = 0
    bos_id: int = 1
    eos_id: int = 2
    charsmap: bytes = b""
    adds_blank: bool = True
    merges_blanks: bool = True


def encoder(path: Path, settings: Mapping[str, Any]) -> Encoder:
    """The tokenizer of a file. settings: of tokenizer_config.json. Raises ModelError."""
    try:
        file = parsed(path.read_bytes())
    except (OSError, ValueError, struct.error) as error:
        raise ModelError(f"{path} is not a SentencePiece model: {error}") from error
    if file.kind not in (_UNIGRAM, _BPE):
        kind = _KINDS.get(file.kind, str(file.kind))
        raise ModelError(f"{path}: a SentencePiece model of type {kind} is not supported; expected bpe or unigram")
    blank = file.adds_blank and settings.get("add_prefix_space") is not False
    # Older checkpoints put a blank before every text between special tokens, newer ones before the first alone.
    legacy = settings.get("legacy") is not False
    if file.kind == _BPE:
        built = vocabulary.byte_fallback_bpe(
            file.pieces, file.scores, file.types, unknown=file.unknown_id, blank=blank and legacy
        )
        built.normalizer = normalizers.Sequence([_normalizer(file), built.normalizer])
    else:
        built = _unigram(file)
    if not legacy or file.kind == _UNIGRAM:
        built.normalizer = _normalizer(file)
        scheme = "never" if not blank else "always" if legacy else "first"
        built.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme=scheme, split=False)
        strip = [decoders.Strip(" ", 1, 0)] if blank else []
        built.decoder = decoders.Sequence(
            [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
    vocabulary.add_tokens(built, file.pieces, file.types)
    _surround(built, file, settings)
    return built


def parsed(raw: bytes) -> SentencePieceFile:
    """The fields of a file's message. Raises ValueError for bytes that are none."""
    pieces, scores, types = list[str](), array("f"), array("i")
    found: dict[str, Any] = {}
    for field, value in _fields(raw):
        if not isinstance(value, bytes) or field not in (1, 2, 3):
            continue
        part = dict(_fields(value))
        if field == 1:
            pieces.append(_bytes(part, 1).decode())
            scores.append(struct.unpack("<f", struct.pack("<I", _number(part, 2, 0)))[0])
            types.append(_number(part, 3, vocabulary.NORMAL))
        elif field == 2:
            found |= {"kind": _number(part, 3, _UNIGRAM), "byte_fallback": _number(part, 35, 0) != 0}
            found |= {"unknown_id": _number(part, 40, 0), "bos_id": _number(part, 41, 1)}
            found["eos_id"] = _number(part, 42, 2)
        else:
            found |= {"charsmap": _bytes(part, 2), "adds_blank": _number(part, 3, 1) != 0}
            found["merges_blanks"] = _number(part, 4, 1) != 0
    if not pieces:
        raise ValueError("it has no pieces")
    if len(set(pieces)) < len(pieces):
        raise ValueError("it holds a piece twice")
    return SentencePieceFile(pieces=pieces, scores=scores, types=types, **found)


def _number(fields: Mapping[int, int | bytes], field: int, default: int) -> int:
    """An integer; a negative one is stored with 64 bits. Raises ValueError for bytes."""
    value = fields.get(field, default)
    if not isinstance(value, int):
        raise ValueError(f"field {field} is no number")
    return value - (1 << 64) if value >> 63 else value


def _bytes(fields: Mapping[int, int | bytes], field: int) -> bytes:
    value = fields.get(field, b"")
    if not isinstance(value, bytes):
        raise ValueError(f"field {field} is a number")
    return value


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field of a message: integers as they are stored, all else as bytes."""
    at = 0
    while at < len(raw):
        tag, at = _varint(raw, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(raw, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(raw, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"a field of the unknown kind {kind} at byte {at}")
        if size > len(raw) - at:
            raise ValueError("it ends before the end of a field")
        part, at = raw[at : at + size], at + size
        yield tag >> 3, part if kind == _BYTES else int.from_bytes(part, "little")


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(raw):
            break
        byte, at = raw[at], at + 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("it ends before the end of a number")


def _unigram(file: SentencePieceFile) -> Encoder:
    unknown = file.unknown_id if 0 <= file.unknown_id < len(file.pieces) else None
    scored = [(piece, float(score)) for piece, score in zip(file.pieces, file.scores, strict=True)]
    return Encoder(models.Unigram(scored, unk_id=unknown, byte_fallback=file.byte_fallback))


def _normalizer(file: SentencePieceFile) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(file.charsmap)] if file.charsmap else []
    if file.merges_blanks:
        steps += [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    return normalizers.Sequence(steps)


def _surround(built: Encoder, file: SentencePieceFile, settings: Mapping[str, Any]) -> None:
    """A BOS unless the settings say otherwise, an EOS if they do."""
    found: list[tuple[str, int] | None] = []
    for name, index, default in (("bos", file.bos_id, True), ("eos", file.eos_id, False)):
        is_put = settings.get(f"add_{name}_token", default) and 0 <= index < len(file.pieces)
        found.append((file.pieces[index], index) if is_put else None)
    vocabulary.surround(built, *found)
