"""Whether a grammar can be served: it compiles, something can be written in it, and no step of it takes too much.

Called by the worker in a process that may be killed; the engine compiles what passed, under the same limits.
"""

import time
from typing import Final

import numpy as np
from llguidance import LLMatcher
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

from kvasir_runtime.guide import grammars
from kvasir_runtime.guide.errors import GrammarError, one_line
from kvasir_runtime.guide.protocol import Verdict
from kvasir_runtime.guide.vocabulary import Vocabulary
from kvasir_runtime.wire import Grammar

NUM_WALKS: Final = 3
WALK_TOKENS: Final = 48
WALKS_S: Final = 0.3
DEAD_END: Final = "NoExtension"


def verdict(grammar: Grammar, vocabulary: Vocabulary) -> Verdict:
    """Try it out. May take any time and memory, so the caller limits both."""
    try:
        made = grammars.rewritten(grammar, vocabulary.specials)
        _walk(vocabulary.matcher(made), vocabulary.tokenizer.vocab_size)
        vocabulary.checker(made)
    except GrammarError as error:
        return Verdict(error=one_line(str(error)))
    except RecursionError:
        return Verdict(error="it is nested too deeply")
    return Verdict(grammar=made)


def _walk(matcher: LLMatcher, vocab_size: int) -> None:
    """Write some answers at random. A dead end at the beginning, or in every walk, means that nothing fits."""
    deadline = time.monotonic() + WALKS_S
    mask = allocate_token_bitmask(1, vocab_size)
    for seed in range(NUM_WALKS):
        one, chance = matcher.deep_copy(), np.random.default_rng(seed)
        for _ in range(WALK_TOKENS):
            fill_next_token_bitmask(one, mask, 0)
            if one.is_error():
                break
            allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8)[0], bitorder="little")[:vocab_size])
            one.consume_token(int(chance.choice(allowed)))
            if one.is_stopped() or time.monotonic() > deadline:
                break
        if not one.is_error():
            return
        if DEAD_END not in one.get_error():
            raise GrammarError(one.get_error())
    raise GrammarError("it is unsatisfiable: nothing that can be written fits it")
