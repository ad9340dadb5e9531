"""What a new replica computes of what peers offer."""

import pytest

from fakes.engine_facts import engine_facts
from kvasir_runtime.server.prefix_warmup import SharedPrefix, chosen, is_address

FACTS = engine_facts(max_model_len=16, max_sequences=2, max_batch_tokens=8, vocab_size=100)


def offered(*ids, hits=1.0, salt=""):
    return SharedPrefix(ids=list(ids), hits=hits, salt=salt)


@pytest.mark.parametrize(
    ("prefixes", "prompts"),
    [
        ([], []),
        ([offered(1, 2), offered(3, 4, hits=2.0)], [(3, 4), (1, 2)]),
        ([offered(1, 2), offered(1, 2)], [(1, 2)]),
        ([offered(1, 2), offered(1, 2, salt="61")], [(1, 2), (1, 2)]),
        # nothing that the model has no ids for, that is longer than it takes, or is no salt
        ([offered(1, 100), offered(-1), offered(), offered(*range(16)), offered(5, salt="x"), offered(7)], [(7,)]),
        # half of the cache is 20 tokens
        ([offered(*range(n, n + 12), hits=9 - n) for n in range(3)], [tuple(range(12))]),
        ([offered(*range(12), hits=9), offered(*range(8), hits=2)], [tuple(range(12)), tuple(range(8))]),
    ],
)
def test_what_is_computed_of_what_is_offered(prefixes, prompts):
    assert [ids for _, ids in chosen(prefixes, FACTS)] == prompts


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("http://10.0.0.1:8001", True),
        ("http://[fd00::1]:8001", True),
        ("http://10.0.0.1:8001/state", False),
        ("https://10.0.0.1:8001", False),
        ("http://metadata.example:80", False),
        ("http://user@10.0.0.1:80", False),
    ],
)
def test_only_addresses_of_ports_are_asked(base, expected):
    assert is_address(base) is expected
