"""The ids after which an answer is over, from every file of a checkpoint that names one. Called by the runner.

Fine-tunes often change the end of an answer in tokenizer_config.json alone (ChatML's `<|im_end|>` on a base model), so
config.json and generation_config.json are not enough. Only the lists of added tokens are read, not the vocabulary.
"""

from pathlib import Path
from typing import Any

import msgspec

from kvasir_runtime.models.config import ModelConfig, decode_file
from kvasir_runtime.tokenizer_files.files import MAX_FILE_BYTES

_Ids = int | tuple[int, ...] | None


class _Generation(msgspec.Struct, frozen=True, kw_only=True):
    eos_token_id: _Ids = None


class _Token(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    id: int = -1


class _TokenizerConfig(msgspec.Struct, frozen=True, kw_only=True):
    eos_token: str | _Token | None = None
    added_tokens_decoder: dict[str, _Token] = {}


class _TokenizerFile(msgspec.Struct, frozen=True, kw_only=True):
    added_tokens: tuple[_Token, ...] = ()


def read_eos_token_ids(model: Path, config: ModelConfig) -> tuple[int, ...]:
    """Each id once: those of generation_config.json, of config.json, and the tokenizer's end token, in that order.

    model: a directory, or a GGUF file, of which config has all. Ids beyond the vocabulary are left out. Raises
    ModelError for a file that is damaged.
    """
    path = model / "generation_config.json"
    generation = decode_file(path, _Generation) if path.exists() else _Generation()
    ids: dict[int, None] = {}
    for given in (generation.eos_token_id, config.eos_token_id, _of_tokenizer(model)):
        ids |= dict.fromkeys((given,) if isinstance(given, int) else given or ())
    return tuple(token for token in ids if 0 <= token < config.vocab_size)


def _of_tokenizer(folder: Path) -> int | None:
    """The id of the end token that tokenizer_config.json, or else special_tokens_map.json, names."""
    settings = _settings(folder / "tokenizer_config.json")
    end = settings.eos_token or _settings(folder / "special_tokens_map.json").eos_token
    if end is None:
        return None
    content = end if isinstance(end, str) else end.content
    for number, token in settings.added_tokens_decoder.items():
        if token.content == content and number.isdecimal():
            return int(number)
    path = folder / "tokenizer.json"
    listed = decode_file(path, _TokenizerFile, limit_bytes=MAX_FILE_BYTES).added_tokens if path.exists() else ()
    return next((token.id for token in listed if token.content == content), _listed(folder, content))


def _settings(path: Path) -> _TokenizerConfig:
    return decode_file(path, _TokenizerConfig) if path.exists() else _TokenizerConfig()


def _listed(folder: Path, content: str) -> int | None:
    """As older checkpoints list added tokens: one object from text to id."""
    path = folder / "added_tokens.json"
    listed: dict[str, Any] = decode_file(path, dict[str, Any]) if path.exists() else {}
    found = listed.get(content)
    return found if isinstance(found, int) else None
