"""A request's cache salt separates what is remembered of its text, by how much of it is tokenized again."""

import json
from dataclasses import replace

import pytest

from fakes import tiny_tokenizer
from fakes.counting_encoder import CountingEncoder
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.model_profile import ModelProfile

LONG = "the engine reads a plan " * 2500


@pytest.mark.parametrize("fields", [{}, {"truncate_prompt_tokens": 40_000, "truncation_side": "right"}])
@pytest.mark.parametrize("chat", [False, True])
def test_what_is_remembered_of_a_text_is_separated_by_the_salt(fields, chat):
    """Else the time that an answer takes would show whether another client sent the same text."""
    encoder = CountingEncoder(tiny_tokenizer.byte_level())
    tokenizer = replace(tiny_tokenizer.tokenizer(), encoder=encoder)
    served = ModelProfile(names=("m",), tokenizer=tokenizer, max_context=100_000)

    def tokenized(salt):
        source = {"messages": [{"role": "user", "content": LONG}]} if chat else {"prompt": LONG}
        body = {"model": "m", "max_tokens": 1, **source, **({"cache_salt": salt} if salt else {}), **fields}
        made = prepare.from_bytes(json.dumps(body).encode(), served, chat=chat)
        assert bool(made.requests[0].salt) == bool(salt)
        return encoder.counted()

    whole = tokenized("")
    assert whole > 40_000
    assert tokenized("") < whole / 2, "its parts are known"
    assert tokenized("tenant") == whole
    assert tokenized("other") == whole
    assert tokenized("tenant") == tokenized("other") < whole / 2
