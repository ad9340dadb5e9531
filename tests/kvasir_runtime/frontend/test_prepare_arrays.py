"""Long prompts: what the engine's thread would spend milliseconds on is done before they are sent."""

import json

from fakes import tiny_tokenizer
from fakes.engine_facts import engine_facts
from kvasir_api import hashes
from kvasir_runtime.frontend import prepare
from kvasir_runtime.frontend.model_profile import ModelProfile

READY = engine_facts()
SERVED = ModelProfile(
    names=("m",), tokenizer=tiny_tokenizer.tokenizer(), max_context=4096, ready=READY, hash_salt=b"engine"
)


def requests(**fields):
    body = {"model": "m", "max_tokens": 1, **fields}
    return prepare.from_bytes(json.dumps(body).encode(), SERVED, chat=False).requests


def test_a_long_prompt_is_packed_and_hashed_for_the_engine():
    first, second = requests(prompt=[number % 300 for number in range(2000)], n=2, cache_salt="tenant")
    assert list(first.prompt_ids()) == list(first.prompt)
    assert first.packed_prompt is second.packed_prompt, "made once for all choices"
    want: list[bytes] = []
    root = hashes.block_root(salt=first.salt, secret=b"engine")
    hashes.extend_block_hashes(want, first.prompt, root=root, block_size=READY.block_size)
    assert hashes.split_block_hashes(first.block_hashes) == want
    (short,) = requests(prompt=[1, 2])
    assert (short.packed_prompt, short.block_hashes) == (b"", b"")
