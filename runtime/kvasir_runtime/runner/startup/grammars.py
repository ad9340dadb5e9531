"""The compiler of grammars for a loaded model. Called by `build`."""

from pathlib import Path
from typing import TYPE_CHECKING

from kvasir_runtime.guide.compiler import GrammarCompiler
from kvasir_runtime.wire import EngineFacts

if TYPE_CHECKING:
    from kvasir_runtime.guide.vocabulary import Vocabulary


def compiler(folder: Path, facts: EngineFacts, *, at_once: bool) -> GrammarCompiler:
    """It loads the vocabulary at the first grammar, or at_once.

    That holds the interpreter's lock for a second or two, in which a node sends no beat to the others.
    """

    def load() -> "Vocabulary":
        from kvasir_runtime.guide import vocabulary

        return vocabulary.load(folder, facts.vocab_size, facts.eos_token_ids)

    made = GrammarCompiler(load, facts.eos_token_ids)
    if at_once:
        made.load()
    return made
