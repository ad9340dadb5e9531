"""Build a model's tokenizer from the file that holds it.

Called by the API process, and by grammars in the engine: both must split texts alike. tokenizer.json wins over the
formats that it was converted from.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as Encoder

from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError
from kvasir_runtime.gguf import vocabulary
from kvasir_runtime.tokenizer_files import sentencepiece_model, tekken
from kvasir_runtime.tokenizer_files.files import check_size, find, read_json


def encoder(model: Path) -> Encoder:
    """The tokenizer of a model's directory or GGUF file, without padding and truncation. Raises ModelError."""
    if gguf.is_gguf(model):
        return vocabulary.encoder(gguf.read(model))
    path = find(model)
    check_size(path)
    if path.name == "tokenizer.json":
        return _library_file(path)
    settings = read_json(model / "tokenizer_config.json", missing_ok=True)
    build: Callable[[Path, Mapping[str, Any]], Encoder]
    build = tekken.encoder if path.name == "tekken.json" else sentencepiece_model.encoder
    try:
        built = build(path, settings)
        _add_listed(built, settings)
    except ModelError:
        raise
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path} is not a tokenizer: {_one_line(error)}") from error
    return built


def _library_file(path: Path) -> Encoder:
    try:
        built = Encoder.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path} is not a tokenizer: {_one_line(error)}") from error
    built.no_padding()
    built.no_truncation()
    return built


def _add_listed(built: Encoder, settings: Mapping[str, Any]) -> None:
    """Tokens that tokenizer_config.json adds to the file's. Raises ValueError where their ids cannot be theirs."""
    listed = settings.get("added_tokens_decoder") or {}
    for number, token in sorted((int(number), token) for number, token in listed.items()):
        content, special = str(token["content"]), bool(token.get("special"))
        flags = {name: bool(token.get(name, False)) for name in ("single_word", "lstrip", "rstrip", "normalized")}
        add = built.add_special_tokens if special else built.add_tokens
        add([AddedToken(content, special=special, **flags)])
        if built.token_to_id(content) != number:
            raise ValueError(f"added token {content!r} has id {number} and is number {built.token_to_id(content)}")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
