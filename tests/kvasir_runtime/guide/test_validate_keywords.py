"""What is written at random under each keyword of JSON Schema is valid; what cannot be enforced is refused by name."""

import numpy as np
import pytest
from llguidance.numpy import allocate_token_bitmask

from fakes import grammars
from kvasir_runtime.guide import validate
from kvasir_runtime.guide.matcher import GrammarMatcher
from kvasir_runtime.wire import SamplingConfig

ALL = grammars.all_of_them()
LISTED = {
    "anyOf", "oneOf", "allOf", "$ref", "const", "enum", "type", "items", "prefixItems", "minItems", "maxItems",
    "properties", "additionalProperties", "patternProperties", "required", "minProperties", "maxProperties",
    "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf",
}  # fmt: skip


def written(guide, chance, vocab_size, limit=400):
    """Token ids of an answer drawn at random, which prefers to end, as unbounded texts would not."""
    mask = allocate_token_bitmask(1, vocab_size)
    tokens = []
    while len(tokens) < limit:
        guide.fill(mask)
        assert not guide.error
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8)[0], bitorder="little")[:vocab_size])
        drawn = 0 if 0 in allowed and chance.random() < 0.5 else int(chance.choice(allowed))
        taken = guide.take(drawn, room=limit)
        assert not taken.error
        tokens += [token for token in taken.tokens if token != 0]
        if taken.ended:
            return tokens
    return None


def test_every_keyword_that_the_library_lists_is_in_the_corpus():
    assert set(grammars.KEYWORDS) >= LISTED


@pytest.mark.parametrize("name", ALL)
def test_what_is_written_is_valid(words, name):
    grammar, right = ALL[name]
    found = validate.verdict(grammar, words)
    assert found.error == ""
    matcher, ended = words.matcher(found.grammar), 0
    for seed in range(8):
        guide = GrammarMatcher(matcher.deep_copy(), SamplingConfig(max_tokens=1, grammar=grammar), (0,))
        tokens = written(guide, np.random.default_rng(seed), words.tokenizer.vocab_size)
        if tokens is not None:
            text = words.tokenizer.decode_bytes(tokens).decode()
            assert right(text), text
            ended += 1
    assert ended


@pytest.mark.parametrize("keyword", grammars.UNSUPPORTED)
def test_what_cannot_be_enforced_is_refused_by_its_name(words, keyword):
    error = validate.verdict(grammars.of_schema(grammars.UNSUPPORTED[keyword]), words).error
    assert keyword in error
    assert "cannot be enforced" in error
