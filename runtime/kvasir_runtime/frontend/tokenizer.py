"""The tokenizer of a model: text to ids and back, chat messages to a prompt, facts that requests are checked against.

Loaded once from the model's directory by the start of the process; encode() and rendered() run in worker threads,
decode() on the event loop for a few ids at a time.
"""

import functools
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from tokenizers import Tokenizer as Encoder

from kvasir_api import hf_config
from kvasir_runtime import gguf
from kvasir_runtime.errors import ModelError
from kvasir_runtime.frontend import chat_template, split_points, template_sources
from kvasir_runtime.frontend.chat_template import ChatTemplate, TemplateError
from kvasir_runtime.frontend.detokenizer import Decoding
from kvasir_runtime.frontend.template_sources import DEFAULT, TOOL_USE, USED
from kvasir_runtime.frontend.text_encoder import TextEncoder
from kvasir_runtime.gguf import vocabulary
from kvasir_runtime.tokenizer_files import build
from kvasir_runtime.tokenizer_files.byte_letters import BYTES_OF
from kvasir_runtime.tokenizer_files.files import read_json

SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
LONG_TOKENS: Final = 4096
"""So many ids are decoded by the batch's method, which releases the interpreter."""


class PromptTooLong(ValueError):
    """A text that cannot fit, found before all of it was tokenized. least_tokens: a lower bound of its length."""

    def __init__(self, least_tokens: int) -> None:
        super().__init__(f"at least {least_tokens} tokens")
        self.least_tokens = least_tokens


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """vocab_size: ids below it may be sent to the model. longest_token: in characters.

    tool_template: of chats with tools, where the checkpoint has one of its own for them. text_end: id of a token that
    texts to embed end with, where only tokenizer_config.json says so (add_eos_token), and the encoder leaves it out.
    """

    encoder: Encoder
    template: ChatTemplate | None
    vocab_size: int
    longest_token: int
    tool_template: ChatTemplate | None = None
    text_end: int | None = None

    def encode(self, text: str, *, special: bool, limit: int, salt: bytes = b"") -> tuple[int, ...]:
        """Ids of a text; special adds what the tokenizer puts around it (a BOS).

        salt: separates what is remembered of texts. Raises PromptTooLong when there are more than limit; the rest
        is not tokenized then. Raises Refused for a text that cannot be split.
        """
        least = self.least_tokens(text)
        if least > limit:
            raise PromptTooLong(least)
        before, behind = self._surrounding if special else ((), ())
        ids = (*before, *self.text_encoder.ids(text, limit + 1, salt=salt), *behind)
        if len(ids) > limit:
            raise PromptTooLong(len(ids))
        return ids

    def encode_cut(
        self, text: str, *, special: bool, keep: int, side: Literal["left", "right"], salt: bytes = b""
    ) -> tuple[int, ...]:
        """The first or, with side left, the last ids of what encode() gives, at most keep; what is cut off that side
        is not tokenized. salt: as of encode(). Raises Refused for a text that cannot be split."""
        before, behind = self._surrounding if special else ((), ())
        if side == "right":
            return (*before, *self.text_encoder.ids(text, keep, salt=salt), *behind)[:keep]
        return (*before, *self.text_encoder.last_ids(text, keep), *behind)[-keep:]

    def least_tokens(self, text: str) -> int:
        """A lower bound of a text's length, by its characters alone; 0 where a token may stand for any number."""
        return len(text) // (self.longest_token * self._shrinking) if self._shrinking else 0

    @functools.cached_property
    def text_encoder(self) -> TextEncoder:
        """Of texts without special tokens around them."""
        return TextEncoder(self.encoder)

    @functools.cached_property
    def _surrounding(self) -> tuple[Sequence[int], Sequence[int]]:
        """Ids that the tokenizer puts before and behind every text."""
        bare = self.encoder.encode("a", add_special_tokens=False).ids
        whole = self.encoder.encode("a", add_special_tokens=True).ids
        place = next(at for at in range(len(whole)) if whole[at : at + len(bare)] == bare)
        return whole[:place], whole[place + len(bare) :]

    @functools.cached_property
    def _shrinking(self) -> int:
        """How many characters of a text become one before it is tokenized, at most; 0 for any number.

        Composition makes at most four into one. An unknown word of WordPiece is one token, however long it is.
        """
        takes_blanks = any(token.lstrip or token.rstrip for token in self.encoder.get_added_tokens_decoder().values())
        if takes_blanks or self.spelling == "other" or type(self.encoder.model).__name__ != "BPE":
            return 0
        steps = split_points.components(self.encoder.normalizer)
        kept = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
        if not all(step == kept or step["type"] in {"NFC", "Prepend"} for step in steps):
            return 0
        return 4 if any(step["type"] == "NFC" for step in steps) else 1

    def decode(self, token_ids: Sequence[int], *, special: bool = False) -> str:
        """Text of ids, special tokens only where wanted; unknown ids are left out."""
        if len(token_ids) < LONG_TOKENS:
            return str(self.encoder.decode(token_ids, skip_special_tokens=not special))
        return str(self.encoder.decode_batch([token_ids], skip_special_tokens=not special)[0])

    def decoding(self, hidden: Collection[int]) -> Decoding:
        """How the ids of an answer become its text. hidden: ids that it leaves out."""
        table = self.byte_table

        def decode(token_ids: Sequence[int]) -> str:
            return self.decode([one for one in token_ids if one not in hidden], special=True)

        if table is None:
            return Decoding(decode)
        return Decoding(decode, lambda token_ids: b"".join([table[one] for one in token_ids if one not in hidden]))

    @functools.cached_property
    def byte_table(self) -> Mapping[int, bytes] | None:
        """What each id stands for, where a text is these bytes in UTF-8 and nothing more; None where it may be more."""
        state = self.encoder.decoder.__getstate__() if self.encoder.decoder is not None else b"{}"
        return _ByteTable(self.piece) if json.loads(state).get("type") == "ByteLevel" else None

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
    def turn_end(self) -> int | None:
        """The id that the chat template writes behind an assistant's message, None where that is no added token."""
        behind = self.template.behind_answer() if self.template is not None else ""
        found = {token.content: token_id for token_id, token in self.encoder.get_added_tokens_decoder().items()}
        longest = max((content for content in found if content and behind.startswith(content)), key=len, default="")
        return found[longest] if longest and found[longest] < self.vocab_size else None

    @functools.cached_property
    def spelling(self) -> Literal["byte-level", "byte-fallback", "other"]:
        """How the vocabulary writes bytes, according to its decoder."""
        state = bytes(self.encoder.decoder.__getstate__()) if self.encoder.decoder is not None else b""
        if b'"ByteLevel"' in state:
            return "byte-level"
        return "byte-fallback" if b'"ByteFallback"' in state else "other"

    def template_for(self, tools: Sequence[object] | None) -> ChatTemplate | None:
        """The template of a chat with these tools, or with none."""
        return self.tool_template if tools and self.tool_template is not None else self.template

    @property
    def template_text(self) -> str:
        """The source of all templates, in which formats of calls and reasoning are recognised; "" without any."""
        return "\n".join(one.source for one in (self.template, self.tool_template) if one is not None)

    def rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt for chat messages as a text. Raises TemplateError."""
        template = self.template_for(tools)
        if template is None:
            raise TemplateError("the model has no chat template; use /v1/completions, or start with --chat-template")
        return template.render(messages, variables, tools=tools, add_generation_prompt=add_generation_prompt)

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


class _ByteTable(dict[int, bytes]):
    """Of a byte-level decoder, filled as ids occur: letters of bytes, or a token that has others as it is written."""

    def __init__(self, piece: Callable[[int], str]) -> None:
        super().__init__()
        self._piece = piece

    def __missing__(self, token_id: int) -> bytes:
        piece = self._piece(token_id)
        raw = [BYTES_OF[letter] for letter in piece if letter in BYTES_OF]
        self[token_id] = found = bytes(raw) if len(raw) == len(piece) else piece.encode()
        return found


def load(folder: Path, chat_template: str = "") -> Tokenizer:
    """Read the tokenizer's files and templates of a directory, or what is in a GGUF file.

    chat_template: the option, in place of the checkpoint's. Raises ModelError.
    """
    if gguf.is_gguf(folder):
        return _inside(gguf.read(folder), chat_template)
    config = hf_config.flattened(read_json(folder / "config.json"))
    vocab_size = config.get("vocab_size")
    if not isinstance(vocab_size, int) or isinstance(vocab_size, bool) or vocab_size < 1:
        raise ModelError(f"{folder / 'config.json'}: vocab_size is {vocab_size!r}, not a count")
    encoder = build.encoder(folder)
    settings = read_json(folder / "tokenizer_config.json", missing_ok=True)
    specials = _special_tokens(read_json(folder / "special_tokens_map.json", missing_ok=True) | settings)
    sources = template_sources.chosen(template_sources.of_directory(folder, settings), chat_template)
    made = _made(folder, encoder, sources, specials, vocab_size)
    return replace(made, text_end=_text_end(encoder, settings, specials.get("eos_token", "")))


def _text_end(encoder: Encoder, settings: Mapping[str, Any], eos: str) -> int | None:
    """As of `Tokenizer`: of models whose tokenizer.json was not changed when they were trained to embed."""
    end: int | None = encoder.token_to_id(eos) if settings.get("add_eos_token") is True else None
    return None if encoder.encode("a").ids[-1:] == [end] else end


def text_part(folder: Path) -> str:
    """A sentence for a checkpoint of which only the text is served, "" for others. Raises ModelError."""
    return "" if gguf.is_gguf(folder) else hf_config.text_part(read_json(folder / "config.json"))


def _inside(file: gguf.GgufFile, chat_template: str) -> Tokenizer:
    # A file with a vocabulary alone has no embedding to count.
    vocab_size = gguf.vocab_size(file) if file.tensors else len(file.texts("tokenizer.ggml.tokens"))
    sources = template_sources.chosen(template_sources.of_gguf(file), chat_template)
    return _made(file.path, vocabulary.encoder(file), sources, vocabulary.special_tokens(file), vocab_size)


def _made(
    path: Path, encoder: Encoder, sources: Mapping[str, str], specials: dict[str, str], vocab_size: int
) -> Tokenizer:
    try:
        made = {name: ChatTemplate(source, specials) for name, source in sources.items() if name in USED}
    except TemplateError as error:
        raise ModelError(f"{path}: {one_line(error)}") from error
    longest = max((len(token) for token in encoder.get_vocab()), default=1)
    return Tokenizer(
        encoder=encoder,
        template=made.get(DEFAULT),
        tool_template=made.get(TOOL_USE),
        vocab_size=vocab_size,
        longest_token=max(1, longest),
    )


def one_line(error: BaseException) -> str:
    """An error's message without line breaks, bounded."""
    return " ".join(str(error).split())[:300] or type(error).__name__


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
