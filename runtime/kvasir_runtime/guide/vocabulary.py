"""The model's vocabulary for llguidance, from tokenizer.json or a GGUF file. Loaded at the first grammar, not before.

It takes about a second and 100 MB for 150,000 tokens, and llguidance holds the interpreter's lock meanwhile.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llguidance import LLMatcher, LLTokenizer

from kvasir_runtime import gguf
from kvasir_runtime.guide import grammars
from kvasir_runtime.guide.errors import GrammarError
from kvasir_runtime.tokenizer_files import build
from kvasir_runtime.wire import Grammar


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """tokenizer: llguidance's. specials: ids of special tokens by name, which no ordinary text spells."""

    tokenizer: LLTokenizer
    specials: dict[str, int]

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """A compiled grammar at its beginning. Raises GrammarError. The lock is released while it compiles."""
        matcher = LLMatcher(
            self.tokenizer, grammars.source(grammar, self.specials), log_level=0, limits=grammars.limits()
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
