"""What a new replica computes of what peers offer."""

import pytest

from fakes.engine_facts import engine_facts
from kvasir_runtime.server.peer_prefixes.warmup import (
    OfferedPrefix,
    SharedPrefix,
    SharedPrefixes,
    chosen,
    is_address,
    offered,
    offered_by,
)

FACTS = engine_facts(max_model_len=16, max_sequences=2, max_batch_tokens=8, vocab_size=100)
HALF = 20
"""Tokens of the cache above."""


def prefix(*ids, hits=1.0, salt="", **place):
    return SharedPrefix(ids=list(ids), hits=hits, salt=salt, **place)


@pytest.mark.parametrize(
    ("prefixes", "prompts"),
    [
        ([], []),
        ([prefix(1, 2), prefix(3, 4, hits=2.0)], [(3, 4), (1, 2)]),
        ([prefix(1, 2), prefix(1, 2)], [(1, 2)]),
        ([prefix(1, 2), prefix(1, 2, salt="61")], [(1, 2), (1, 2)]),
        # nothing that the model has no ids for, that is longer than it takes, or is no salt
        ([prefix(1, 100), prefix(-1), prefix(), prefix(*range(16)), prefix(5, salt="x"), prefix(7)], [(7,)]),
        # half of the cache is 20 tokens
        ([prefix(*range(n, n + 12), hits=9 - n) for n in range(3)], [tuple(range(12))]),
        ([prefix(*range(12), hits=9), prefix(*range(8), hits=2)], [tuple(range(12)), tuple(range(8))]),
        # behind others
        ([prefix(1, 2, 3, hits=9), prefix(4, follows=0, kept=2)], [(1, 2, 3), (1, 2, 4)]),
        ([prefix(1, 2, hits=9), prefix(follows=0, kept=1), prefix(4, follows=1, kept=1)], [(1, 2), (1, 4), (1,)]),
        ([prefix(1, 2), prefix(3, follows=1, kept=1), prefix(3, follows=7), prefix(3, follows=-2)], [(1, 2)]),
        ([prefix(100), prefix(3, follows=0, kept=1), prefix(4, follows=1, kept=1)], []),
        ([prefix(*range(9)), prefix(*range(9), follows=0, kept=9)], [tuple(range(9))]),
        ([prefix(1, 2), prefix(3, 4, follows=0, kept=-1)], [(1, 2), (3, 4)]),
    ],
)
def test_what_is_computed_of_what_is_offered(prefixes, prompts):
    assert [p.ids for p in chosen(offered(prefixes, FACTS), HALF)] == prompts


def test_what_prefixes_share_takes_its_part_of_the_cache_once():
    shared = (1,) * 512
    prefixes = [OfferedPrefix(b"", (*shared, n, n), hits=9.0) for n in range(64)]
    found = chosen(prefixes, 600)
    assert [p.new for p in found] == [514, *[2] * 43]
    assert chosen([*prefixes[:1], OfferedPrefix(b"", shared)], 600) == found[:1], "it is a beginning of another"
    assert len(chosen([prefixes[0], OfferedPrefix(b"a", prefixes[1].ids)], 600)) == 1, "salts share nothing"


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("http://10.0.0.1:8001", True),
        ("http://[fd00::1]:8001", True),
        ("http://10.0.0.1:8001/state", False),
        ("https://10.0.0.1:8001", True),
        ("https://10.0.0.1:8001#a.b.svc", False),
        ("ftp://10.0.0.1:8001", False),
        ("http://metadata.example:80", False),
        ("http://user@10.0.0.1:80", False),
    ],
)
def test_only_addresses_of_ports_are_asked(base, expected):
    assert is_address(base) is expected


@pytest.mark.parametrize(
    ("base", "port", "want"),
    [
        ("http://10.0.0.1:8001", 8002, "10.0.0.1:8002"),
        ("https://[fd00::1]:8001", 8002, "[fd00::1]:8002"),
        ("http://10.0.0.1:8001", 0, ""),
        ("http://10.0.0.1:8001", -3, ""),
        ("http://10.0.0.1:8001", 1 << 40, ""),
    ],
)
def test_blocks_of_what_is_offered_may_be_fetched_at_the_peer_s_own_address(base, port, want):
    answer = SharedPrefixes(tokenizer="t", prefixes=[prefix(1, 2)], kv_transfer_port=port)
    (found,) = chosen(offered_by(base, answer, FACTS), HALF)
    assert (found.ids, found.kv_peer) == ((1, 2), want)
