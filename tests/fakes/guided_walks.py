"""Answers drawn at random under a grammar, with the check of a schema where its grammar needs one."""

from typing import Any

import numpy as np
from llguidance.numpy import allocate_token_bitmask

from kvasir_runtime.guide.matcher import GrammarMatcher
from kvasir_runtime.guide.vocabulary import Vocabulary
from kvasir_runtime.wire import Grammar, SamplingConfig


def matcher_of(grammar: Grammar, vocabulary: Vocabulary, eos: int) -> GrammarMatcher:
    """The beginning of an answer under a grammar that a verdict returned."""
    sampling = SamplingConfig(max_tokens=1, grammar=grammar)
    return GrammarMatcher(vocabulary.matcher(grammar), sampling, (eos,), (), vocabulary.checker(grammar))


def written(
    guide: GrammarMatcher, chance: np.random.Generator, vocab_size: int, *, eos: int = 0, limit: int = 400, **likes: Any
) -> list[int] | None:
    """Token ids of an answer that prefers to end, as unbounded texts would not; None where it does not.

    Tokens that the check refuses are drawn again, as the sampler does. likes: closing, tokens to prefer.
    """
    closing = frozenset(likes.get("closing", ())) | {eos}
    mask = allocate_token_bitmask(1, vocab_size)
    tokens: list[int] = []
    while len(tokens) < limit:
        guide.fill(mask)
        assert not guide.error, guide.error
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8)[0], bitorder="little")[:vocab_size])
        liked = [token for token in allowed.tolist() if token in closing]
        order = [*(liked if chance.random() < 0.5 else ()), *chance.permutation(allowed).tolist()]
        drawn = next((token for token in order[:4] if guide.admits(token)), None)
        taken = guide.take(guide.token_to_end() if drawn is None else drawn, room=limit)
        assert not taken.error, taken.error
        tokens += [token for token in taken.tokens if token != eos]
        if taken.ended:
            return tokens
    return None
