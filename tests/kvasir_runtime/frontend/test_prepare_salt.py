"""A request's cache salt separates what is remembered of its text."""

import json

import pytest

from fakes import tiny_tokenizer
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.text_encoder import TextEncoder

SERVED = ModelProfile(names=("m",), tokenizer=tiny_tokenizer.tokenizer(""), max_context=64)


@pytest.mark.parametrize("fields", [{}, {"truncate_prompt_tokens": 2, "truncation_side": "right"}])
def test_what_is_remembered_of_a_text_is_separated_by_the_salt(fields, monkeypatch):
    """Else the time that an answer takes would show whether another client sent the same text."""
    salts = []

    def ids(self, text, enough=None, *, salt=b""):
        salts.append(salt)
        return [1, 2, 3]

    monkeypatch.setattr(TextEncoder, "ids", ids)
    body = {"model": "m", "prompt": "plan Z", "cache_salt": "tenant", **fields}
    made = prepare.from_bytes(json.dumps(body).encode(), SERVED, chat=False)
    assert made.requests[0].salt
    assert salts == [made.requests[0].salt]
