"""The model's vocabulary as llguidance wants it, from tokenizer.json. Loaded at the first grammar, never before.

It takes about a second and 100 MB for 150,000 tokens, and llguidance holds the interpreter's lock meanwhile.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLMatcher, LLTokenizer

from kvasir_runtime.guide import grammars
from kvasir_runtime.guide.errors import GrammarError
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
    """vocab_size: of the model's logits, which may exceed the tokenizer's. Raises GrammarError."""
    path = folder / "tokenizer.json"
    try:
        added = json.loads(path.read_bytes()).get("added_tokens") or []
        specials = {token["content"]: token["id"] for token in added if token.get("special")}
        tokenizer = LLTokenizer(str(path), n_vocab=_size(path, vocab_size), eos_token=list(eos_token_ids) or None)
    except Exception as error:  # the library raises whatever its parser meets
        raise GrammarError(f"the model's tokenizer cannot be used for guided decoding: {error}") from error
    return Vocabulary(tokenizer, specials)


def _size(path: Path, vocab_size: int) -> int:
    document = json.loads(path.read_bytes())
    ids = [token["id"] for token in document.get("added_tokens") or []]
    vocab = document.get("model", {}).get("vocab", ())
    ids += vocab.values() if isinstance(vocab, dict) else [len(vocab) - 1]
    return max(vocab_size, 1 + max(ids, default=0))
