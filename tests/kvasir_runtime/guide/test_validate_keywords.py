"""What is written at random under each keyword of JSON Schema is valid; what cannot be served is refused."""

import numpy as np
import pytest

from fakes import grammars, guided_walks
from kvasir_runtime.guide import validate

ALL = grammars.all_of_them()
LISTED = {
    "anyOf", "oneOf", "allOf", "$ref", "const", "enum", "type", "items", "prefixItems", "minItems", "maxItems",
    "properties", "additionalProperties", "patternProperties", "required", "minProperties", "maxProperties",
    "minLength", "maxLength", "pattern", "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "multipleOf",
}  # fmt: skip


def test_every_keyword_that_the_library_lists_is_in_the_corpus():
    assert set(grammars.KEYWORDS) >= LISTED


@pytest.mark.parametrize("name", ALL)
def test_what_is_written_is_valid(words, name):
    grammar, right = ALL[name]
    found = validate.verdict(grammar, words)
    assert found.error == ""
    ended = 0
    for seed in range(8):
        guide = guided_walks.matcher_of(found.grammar, words, 0)
        tokens = guided_walks.written(guide, np.random.default_rng(seed), words.tokenizer.vocab_size)
        if tokens is not None:
            text = words.tokenizer.decode_bytes(tokens).decode()
            assert right(text), text
            ended += 1
    assert ended


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "https://example.com/x"}, "leads out of the schema"),
        ({"not": {}}, "Unsatisfiable"),
        ({"type": "string", "pattern": "(?=a)b"}, "look-around"),
        (
            {"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
            "nothing that fits it was found",
        ),
        ({"type": "object", "x-guidance": 1}, "must be an object"),
    ],
)
def test_what_cannot_be_served_is_refused_with_a_reason(words, schema, reason):
    error = validate.verdict(grammars.of_schema(schema), words).error
    assert reason in error
    assert "coerce" not in error, "no option that a client cannot set"
