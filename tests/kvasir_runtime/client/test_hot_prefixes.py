"""Which beginnings of prompts are hot: a table, bounds, and a reference over random prompts."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_api.hashes import owner_of_salt
from kvasir_runtime.client import hot_prefixes
from kvasir_runtime.client.hot_prefixes import HotPrefixes
from kvasir_runtime.wire import EngineRequest, PoolingConfig, SamplingConfig, packed_ids

SAMPLING = SamplingConfig(max_tokens=1)


def request(prompt, salt=b"", **fields):
    return EngineRequest(request_id="r", prompt=tuple(prompt), sampling=SAMPLING, salt=salt, **fields)


def asked(*prompts, piece_tokens=2, **fields):
    """Each prompt in an HTTP request of its own."""
    found = HotPrefixes(piece_tokens)
    for prompt in prompts:
        found.note([request(prompt, **fields)])
    return found


def top(found, count, most_tokens=10**6):
    """The prefixes in full."""
    whole = []
    for prefix in found.frozen().top(count, most_tokens):
        kept = whole[prefix.follows].ids[: prefix.kept] if prefix.follows >= 0 else ()
        assert len(kept) == prefix.kept
        whole.append(replace(prefix, ids=kept + prefix.ids, follows=-1, kept=0))
    return whole


@pytest.mark.parametrize(
    ("prompts", "hot"),
    [
        ([], []),
        ([(1, 2, 3, 4)], []),
        ([(1, 2, 3, 4), (1, 2, 3, 4, 5)], [(1, 2, 3, 4)]),
        ([(1, 2, 3, 4), (1, 2, 3, 5)], [(1, 2)]),
        ([(1, 2, 3), (1, 2, 3)], [(1, 2)]),  # whole pieces
        ([(1, 2, 3, 4)] * 2 + [(1, 2, 5, 6)] * 2 + [(1, 2, 7, 8)] * 2, [(1, 2), (1, 2, 7, 8), (1, 2, 5, 6)]),
        ([(1, 2, n, n) for n in range(9)], [(1, 2)]),
        ([(1, 2, 3, 4)] * 9 + [(1, 2, 5, 6)] * 2, [(1, 2, 3, 4), (1, 2, 5, 6)]),
        ([(1, 2, n // 2, 4) for n in range(12)], [(1, 2), (1, 2, 5, 4), (1, 2, 4, 4)]),
    ],
)
def test_what_is_hot(prompts, hot):
    found = [p.ids for p in top(asked(*prompts), 3)]
    assert (sorted(found), found[:1]) == (sorted(hot), hot[:1])


def test_salts_are_apart_and_come_with_their_ids():
    found = asked((1, 2), (1, 2), salt=b"a")
    found.note([request((1, 2))])
    (prefix,) = top(found, 9)
    assert (prefix.ids, prefix.salt, prefix.hits) == ((1, 2), b"a", 2.0)


def test_packed_prompts_are_the_same_and_pooled_ones_are_none():
    packed = {"packed_prompt": packed_ids((1, 2, 3))}
    assert [p.ids for p in top(asked((), (), **packed), 9)] == [(1, 2)]
    assert top(asked((1, 2), (1, 2), pooling=PoolingConfig(kind="last")), 9) == []


def test_old_requests_fade_and_forgetting_leaves_nothing():
    found = asked((1, 2), (1, 2), *((7, n) for n in range(3000)))
    assert top(found, 9) == []
    found = asked((1, 2), (1, 2))
    found.forget()
    assert top(found, 9) == []


def test_choices_of_one_http_request_count_once():
    packed = packed_ids((3, 4))
    found = HotPrefixes(2)
    found.note([request((1, 2))] * 128 + [request((), packed_prompt=packed)] * 2)
    assert top(found, 9) == []
    found.note([request((1, 2))] * 2)
    assert [(p.ids, p.hits) for p in top(found, 9)] == [((1, 2), 2.0)]


def test_one_http_request_costs_the_pieces_of_one_prompt_at_most():
    found = HotPrefixes(1)
    found.note([request(range(n * 1000, n * 1000 + 500)) for n in range(128)])
    assert found.num_pieces == hot_prefixes.MOST_DEPTH


def test_an_owner_is_forgotten_alone():
    found = HotPrefixes(2)
    for salt in (b"tenant-a", b"tenant-a", b"tenant-a of the body", b"tenant-b", b"tenant-b", b"", b""):
        found.note([request((1, 2), salt)])
    found.forget(owner_of_salt(b"tenant-a"))
    assert {p.salt for p in top(found, 9)} == {b"tenant-b", b""}
    found.forget(owner_of_salt(b""))
    assert {p.salt for p in top(found, 9)} == {b"tenant-b"}


def test_memory_is_bounded_and_what_is_asked_stays():
    found = HotPrefixes(1)
    for n in range(200):
        for prompt in ((9, 9, 9), range(n * 1000, n * 1000 + 600)):
            found.note([request(prompt)])
    assert found.num_pieces == hot_prefixes.MOST_PIECES
    assert top(found, 1)[0].ids == (9, 9, 9)


def test_long_prompts_of_one_owner_displace_nothing_of_another():
    found = asked((9, 9, 9), (9, 9, 9), piece_tokens=1, salt=b"tenant-a")
    for n in range(17):
        found.note([request(range(n * 1000, n * 1000 + 600), b"tenant-b")])
    for n in range(3):
        found.note([request((n,), b"tenant-%d" % n)])
    assert found.num_pieces == hot_prefixes.MOST_PIECES
    assert [(p.ids, p.salt) for p in top(found, 1)] == [((9, 9, 9), b"tenant-a")]


@given(st.lists(st.integers(0, 30), min_size=1, max_size=60))
def test_owners_with_an_equal_share_or_less_lose_nothing(owners):
    found, kept = HotPrefixes(1), Counter()
    for n, owner in enumerate(owners):
        found.note([request(range(n * 1000, n * 1000 + 500), bytes([owner]) * 8)])
        kept[owner] += 500
    assert found.num_pieces == min(hot_prefixes.MOST_PIECES, 500 * len(owners))
    fair = hot_prefixes.MOST_PIECES // len(kept)
    for owner, pieces in kept.items():
        before = found.num_pieces
        found.forget(bytes([owner]) * 8)
        assert before - found.num_pieces >= min(pieces, fair)


def test_what_prefixes_share_is_there_once_and_tokens_are_bounded():
    """64 conversations behind one beginning."""
    found = asked(*[(*range(1000, 1100), n, n) for n in range(64)] * 2)
    prefixes = found.frozen().top(99, 10**6)
    assert len(prefixes) == 65
    assert sum(len(p.ids) for p in prefixes) == 100 + 64 * 2
    assert {p.ids for p in top(found, 99)} == {
        tuple(range(1000, 1100)), *((*range(1000, 1100), n, n) for n in range(64))
    }  # fmt: skip
    assert sum(len(p.ids) for p in found.frozen().top(99, 105)) == 104
    assert found.frozen().top(99, 1) == []


@given(st.lists(st.lists(st.integers(0, 1), max_size=8), max_size=12), st.integers(1, 9))
def test_every_hot_beginning_was_asked_twice(prompts, count):
    times = Counter(tuple(p[:end]) for p in prompts for end in range(2, len(p) + 1, 2))
    found = top(asked(*prompts), count)
    assert len(found) <= count
    for prefix in found:
        assert times[prefix.ids] >= 2
        assert prefix.hits == pytest.approx(times[prefix.ids], abs=0.2)
    assert bool(found) == any(n >= 2 for n in times.values())
