"""The tokenizer of a model: text to ids and back, chat messages to a prompt, facts that requests are checked against.

Loaded once from the model's directory by the start of the process; encode() and rendered() run in worker threads
(the library releases the interpreter lock), decode() on the event loop for a few ids at a time.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from tokenizers import Tokenizer as Encoder

from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError
from kvasir_runtime.frontend import chat_template
from kvasir_runtime.frontend.chat_template import ChatTemplate, TemplateError
from kvasir_runtime.gguf import vocabulary

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
MAX_FILE_BYTES = 256 << 20


def _bytes_of() -> dict[str, int]:
    """GPT-2's spelling of bytes as characters: printable ones as themselves, the others from 256 on, in order."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTES_OF: Final = _bytes_of()


class PromptTooLong(ValueError):
    """A text that cannot fit, found before it was tokenized. least_tokens: a lower bound of its length."""

    def __init__(self, least_tokens: int) -> None:
        super().__init__(f"at least {least_tokens} tokens")
        self.least_tokens = least_tokens


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """vocab_size: ids below it may be sent to the model. longest_token: in characters."""

    encoder: Encoder
    template: ChatTemplate | None
    vocab_size: int
    longest_token: int

    def encode(self, text: str, *, special: bool, limit: int) -> tuple[int, ...]:
        """Ids of a text; special adds what the tokenizer puts around it (a BOS).

        Raises PromptTooLong when the text must be longer than limit tokens, without tokenizing it.
        """
        least = len(text) // self.longest_token
        if least > limit:
            raise PromptTooLong(least)
        return tuple(self.encoder.encode(text, add_special_tokens=special).ids)

    def decode(self, token_ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ids, special tokens only where wanted; unknown ids are left out."""
        return str(self.encoder.decode(token_ids, skip_special_tokens=not special))

    def piece(self, token_id: int) -> str:
        """An id as the vocabulary writes it, "" where it has none."""
        return self.encoder.id_to_token(token_id) or ""

    def token_bytes(self, token_id: int) -> bytes:
        """What an id adds to a text, also where that is only a part of a character; special tokens as their name."""
        piece = self.piece(token_id)
        if token_id in self.added_ids:
            return piece.encode()
        if self.spelling == "byte-level":
            raw = [BYTES_OF.get(character) for character in piece]
            return bytes(byte for byte in raw if byte is not None) if None not in raw else piece.encode()
        if self.spelling == "byte-fallback":
            if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
                return bytes.fromhex(piece[3:5])
            return piece.replace("\u2581", " ").encode()
        return self.decode([token_id], special=True).encode()

    @functools.cached_property
    def added_ids(self) -> frozenset[int]:
        """Ids of tokens that are written as they are."""
        return frozenset(self.encoder.get_added_tokens_decoder())

    @functools.cached_property
    def special_tokens(self) -> Mapping[int, str]:
        """Added tokens that texts leave out."""
        return {
            token_id: token.content
            for token_id, token in self.encoder.get_added_tokens_decoder().items()
            if token.special
        }

    @functools.cached_property
    def spelling(self) -> Literal["byte-level", "byte-fallback", "other"]:
        """How the vocabulary writes bytes, according to its decoder."""
        state = bytes(self.encoder.decoder.__getstate__()) if self.encoder.decoder is not None else b""
        if b'"ByteLevel"' in state:
            return "byte-level"
        return "byte-fallback" if b'"ByteFallback"' in state else "other"

    def rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for chat messages as a text. Raises TemplateError."""
        if self.template is None:
            raise TemplateError("the model has no chat template; use /v1/completions")
        return self.template.render(messages, variables, tools=tools, add_generation_prompt=add_generation_prompt)

    def continued(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt that ends in the last message, for an answer that continues it. Raises TemplateError."""
        rendered = self.rendered(messages, variables, tools=tools, add_generation_prompt=False)
        return chat_template.opened(rendered, str(messages[-1]["content"]))


def load(folder: Path) -> Tokenizer:
    """Read config.json, tokenizer.json, tokenizer_config.json and chat_template.jinja, or what is in a GGUF file.

    Raises ModelError.
    """
    if gguf.is_gguf(folder):
        return _inside(gguf.read(folder))
    config = read_json(folder / "config.json")
    vocab_size = config.get("vocab_size")
    if not isinstance(vocab_size, int) or isinstance(vocab_size, bool) or vocab_size < 1:
        raise ModelError(f"{folder / 'config.json'}: vocab_size is {vocab_size!r}, not a count")
    path = folder / "tokenizer.json"
    _check_file(path)
    try:
        encoder = Encoder.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"{path} is not a tokenizer: {one_line(error)}") from error
    encoder.no_padding()
    encoder.no_truncation()
    settings = read_json(folder / "tokenizer_config.json", missing_ok=True)
    specials = _special_tokens(read_json(folder / "special_tokens_map.json", missing_ok=True) | settings)
    source = _template_source(folder, settings)
    return _made(folder, encoder, source, specials, vocab_size)


def _inside(file: gguf.GgufFile) -> Tokenizer:
    source = file.text("tokenizer.chat_template") or None
    vocab_size = int(gguf.config(file)["vocab_size"])
    return _made(file.path, vocabulary.encoder(file), source, vocabulary.special_tokens(file), vocab_size)


def _made(path: Path, encoder: Encoder, source: str | None, specials: dict[str, str], vocab_size: int) -> Tokenizer:
    try:
        template = ChatTemplate(source, specials) if source is not None else None
    except TemplateError as error:
        raise ModelError(f"{path}: {one_line(error)}") from error
    longest = max((len(token) for token in encoder.get_vocab()), default=1)
    return Tokenizer(encoder=encoder, template=template, vocab_size=vocab_size, longest_token=max(1, longest))


def read_json(path: Path, *, missing_ok: bool = False) -> dict[str, Any]:
    """A JSON object of a model's directory; {} where it may be missing. Raises ModelError."""
    if missing_ok and not path.exists():
        return {}
    _check_file(path)
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {one_line(error)}") from error
    if not isinstance(document, dict):
        raise ModelError(f"{path} is not a JSON object")
    return document


def one_line(error: BaseException) -> str:
    """An error's message without line breaks, bounded."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def _check_file(path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    if not path.is_file() or size > MAX_FILE_BYTES:
        raise ModelError(f"{path} is not a file of at most {MAX_FILE_BYTES} bytes")


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Special tokens by name; a file gives each as a string or as an object with its content."""
    found = {}
    for name in SPECIAL_NAMES:
        value = settings.get(name)
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _template_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """A file of its own wins over the entry in the config; of several named templates the default one is taken."""
    path = folder / "chat_template.jinja"
    if path.exists():
        _check_file(path)
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelError(f"{path}: {one_line(error)}") from error
    entry = settings.get("chat_template")
    if entry is None:
        entry = read_json(folder / "chat_template.json", missing_ok=True).get("chat_template")
    if isinstance(entry, list):
        named = {item.get("name"): item.get("template") for item in entry if isinstance(item, dict)}
        entry = named.get("default")
    if entry is None or isinstance(entry, str):
        return entry
    raise ModelError(f"{folder / 'tokenizer_config.json'}: chat_template is not a text")
