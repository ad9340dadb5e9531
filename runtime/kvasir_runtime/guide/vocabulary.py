"""The model's vocabulary for llguidance, from tokenizer.json or a GGUF file. Loaded at the first grammar, not before.

It takes about a second and 100 MB for 150,000 tokens, and llguidance holds the interpreter's lock meanwhile.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from llguidance import LLMatcher, LLTokenizer

from kvasir_runtime import gguf
from kvasir_runtime.guide import grammars
from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.guide.limits import parser_limits
from kvasir_runtime.guide.schemas import json_grammar, translate
from kvasir_runtime.tokenizer_files import build
from kvasir_runtime.wire import Grammar

if TYPE_CHECKING:  # loads the library that validates
    from kvasir_runtime.guide.checker import Alphabet, AnswerChecker


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """tokenizer: llguidance's. specials: ids of special tokens by name, which no ordinary text spells."""

    tokenizer: LLTokenizer
    specials: dict[str, int]

    def checker(self, grammar: Grammar) -> "AnswerChecker | None":
        """What checks an answer beside its matcher, None where the grammar is enough. Raises GrammarError."""
        if not grammar.check:
            return None
        from kvasir_runtime.guide import checker

        alone = msgspec.structs.replace(grammar, after="")
        schemas = grammars.decoded(grammar.check)
        if grammar.kind == "json_schema":
            text = json_grammar.captured(grammars.decoded(grammar.text), grammars.JSON_CHECK)
            return checker.AnswerChecker(translate.byte_matcher(text), schemas, self._bytes(), after=grammar.after)
        return checker.AnswerChecker(self.matcher(alone), schemas, self._tokens(), after=grammar.after)

    def _bytes(self) -> "Alphabet":
        """Bytes: quick to write with, where no special token is in the grammar."""
        from kvasir_runtime.guide.checker import Alphabet, ranks

        text, size = self._texts(), translate.byte_tokenizer().vocab_size
        eos = translate.byte_tokenizer().eos_token
        texts = [bytes([byte]) for byte in range(256)]
        return Alphabet(
            size=size,
            eos=eos,
            ranks=ranks([*texts, *[b""] * (size - len(texts))]),
            spelled=list,
            symbols=lambda token: list(text(token)),
            tokens=lambda symbols: self.tokenizer.tokenize_bytes(bytes(symbols)),
            text=text,
        )

    def _tokens(self) -> "Alphabet":
        from kvasir_runtime.guide.checker import Alphabet, ranks

        text, size = self._texts(), self.tokenizer.vocab_size
        return Alphabet(
            size=size,
            eos=self.tokenizer.eos_token,
            ranks=ranks([text(token) for token in range(size)]),
            spelled=self.tokenizer.tokenize_bytes,
            symbols=lambda token: [token],
            tokens=lambda symbols: symbols,
            text=text,
        )

    def _texts(self) -> Callable[[int], bytes]:
        """The bytes of a token, which are its name where it is a special one."""
        names = {token: name.encode() for name, token in self.specials.items()}
        return lambda token: names.get(token) or bytes(self.tokenizer.decode_bytes([token]))

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """A compiled grammar at its beginning. Raises GrammarError. The lock is released while it compiles."""
        matcher = LLMatcher(
            self.tokenizer, grammars.source(grammar, self.specials), log_level=0, limits=parser_limits()
        )
        if matcher.is_error():
            raise GrammarError(matcher.get_error())
        return matcher


def load(folder: Path, vocab_size: int, eos_token_ids: Sequence[int] = ()) -> Vocabulary:
    """folder: of the model, or a GGUF file. vocab_size: of its logits, which may exceed the tokenizer's.

    Raises GrammarError.
    """
    try:
        text = _document(folder)
        document = json.loads(text)
        added = document.get("added_tokens") or []
        specials = {token["content"]: token["id"] for token in added if token.get("special")}
        size = max(vocab_size, _size(document, added))
        tokenizer = LLTokenizer(text, n_vocab=size, eos_token=list(eos_token_ids) or None)
    except Exception as error:  # the library raises whatever its parser meets
        raise GrammarError(f"the model's tokenizer cannot be used for guided decoding: {error}") from error
    return Vocabulary(tokenizer, specials)


def _document(folder: Path) -> str:
    """The text of tokenizer.json."""
    if not gguf.is_gguf(folder) and (folder / "tokenizer.json").exists():
        return (folder / "tokenizer.json").read_text(encoding="utf-8")
    return str(build.encoder(folder).to_str())


def _size(document: Mapping[str, Any], added: Sequence[Mapping[str, Any]]) -> int:
    vocab = document.get("model", {}).get("vocab", ())
    ids = [token["id"] for token in added]
    ids += vocab.values() if isinstance(vocab, dict) else [len(vocab) - 1]
    return 1 + max(ids, default=0)
