"""Mistral's tekken.json: byte-level BPE by ranks of byte strings, behind a number of special tokens.

The file lists pieces by rank and no merges: two pieces merge if what they make is a piece, the lowest rank first. So
each piece of several bytes is cut everywhere into two others, which gives the merges in the order of ranks.
"""

import base64
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Encoder

from kvasir_runtime.errors import ModelError
from kvasir_runtime.gguf import vocabulary
from kvasir_runtime.tokenizer_files.byte_letters import LETTER_OF

_BOS: Final = "<s>"
# Of files that list none: those of the first version, by id.
_FIRST: Final = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip


class _Piece(msgspec.Struct, frozen=True):
    token_bytes: str


class _Special(msgspec.Struct, frozen=True):
    rank: int
    token_str: str


class _Config(msgspec.Struct, frozen=True):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int


class _File(msgspec.Struct, frozen=True):
    config: _Config
    vocab: tuple[_Piece, ...]
    special_tokens: tuple[_Special, ...] | None = None


def encoder(path: Path, settings: Mapping[str, Any]) -> Encoder:
    """The tokenizer of a file; a text begins with a BOS. settings: of tokenizer_config.json. Raises ModelError."""
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
        pieces = [
            base64.b64decode(piece.token_bytes, validate=True) for piece in file.vocab[: _num_pieces(file.config)]
        ]
    except (OSError, ValueError) as error:  # msgspec's and base64's errors are ValueErrors
        raise ModelError(f"{path} is not a tekken file: {error}") from error
    special = _special_tokens(file)
    letters = ["".join(LETTER_OF[byte] for byte in piece) for piece in pieces]
    vocab = {token: index for index, token in enumerate(special)}
    vocab |= {piece: len(special) + rank for rank, piece in enumerate(letters)}
    if len(vocab) < len(special) + len(letters):
        raise ModelError(f"{path} is not a tekken file: it holds a piece twice")
    built = Encoder(models.BPE(vocab=vocab, merges=[*_merges(letters)], ignore_merges=True))
    split = pre_tokenizers.Split(Regex(file.config.pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    built.decoder = decoders.ByteLevel()
    built.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    if settings.get("add_bos_token", True):
        vocabulary.surround(built, (_BOS, vocab.get(_BOS, 1)), None)
    return built


def _num_pieces(config: _Config) -> int:
    """Files list more pieces than the model has. Raises ValueError for numbers that make no sense."""
    count = config.default_vocab_size - config.default_num_special_tokens
    if not 0 <= config.default_num_special_tokens <= 65_536 or count < 0:
        raise ValueError(
            f"a vocabulary of {config.default_vocab_size} with {config.default_num_special_tokens} special tokens"
        )
    return count


def _special_tokens(file: _File) -> list[str]:
    """By id; those that the file does not name are filled up."""
    count = file.config.default_num_special_tokens
    named = {token.rank: token.token_str for token in file.special_tokens or ()} or dict(enumerate(_FIRST))
    return [named.get(index, f"<SPECIAL_{index}>") for index in range(count)]


def _merges(pieces: list[str]) -> Iterator[tuple[str, str]]:
    """By the rank of what two pieces make, then by the ranks of the two."""
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    for piece in pieces:
        cuts = ((piece[:cut], piece[cut:]) for cut in range(1, len(piece)))
        both = [(ranks[left], ranks[right], left, right) for left, right in cuts if left in ranks and right in ranks]
        yield from ((left, right) for _, _, left, right in sorted(both))
