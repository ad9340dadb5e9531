"""Whatever a client sends, preparing it ends in a job or in a refusal with a 4xx, never in another exception."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes import tiny_tokenizer
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.errors import Refused
from kvasir_runtime.frontend.model_profile import ModelProfile
from kvasir_runtime.frontend.protocol import generation, ignored_fields

SERVED = ModelProfile(names=("m",), tokenizer=tiny_tokenizer.tokenizer(), max_context=64)
NAMES = sorted(
    {
        *generation.CompletionBody.model_fields,
        *generation.ChatBody.model_fields,
        *ignored_fields.CHAT,
        *ignored_fields.COMPLETION,
    }
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.lists(
    st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls"]), JSON | st.sampled_from(["user", "x"])),
    max_size=3,
)
BODIES = st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=6), JSON | MESSAGES, max_size=6)


def outcome(raw, chat):
    status = 200
    requests = ()
    try:
        requests = prepare.from_bytes(raw, SERVED, chat=chat).requests
    except Refused as refused:
        status = refused.error.status
    assert status == 200 if requests else 400 <= status < 500
    for request in requests:
        assert 0 < len(request.prompt) < 64
        assert request.sampling.max_tokens + len(request.prompt) <= 64


@settings(max_examples=300)
@given(raw=st.binary(max_size=40), chat=st.booleans())
def test_any_bytes(raw, chat):
    outcome(raw, chat)


@settings(max_examples=200)
@given(body=BODIES, chat=st.booleans(), valid=st.booleans())
def test_any_json(body, chat, valid):
    least = {"model": "m", "prompt": "x", "messages": [{"role": "user", "content": "x"}]}
    least.pop("prompt" if chat else "messages")
    outcome(json.dumps({**body, **least} if valid else {**least, **body}).encode(), chat)
