"""Which beginnings of prompts are hot: a table, bounds, and a reference over random prompts."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir_runtime.client import hot_prefixes
from kvasir_runtime.client.hot_prefixes import HotPrefixes
from kvasir_runtime.wire import EngineRequest, PoolingConfig, SamplingConfig, packed_ids

SAMPLING = SamplingConfig(max_tokens=1)


def asked(*prompts, salt=b"", **fields):
    found = HotPrefixes(2)
    for prompt in prompts:
        found.note(EngineRequest(request_id="r", prompt=tuple(prompt), sampling=SAMPLING, salt=salt, **fields))
    return found


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
    found = [p.ids for p in asked(*prompts).top(3)]
    assert (sorted(found), found[:1]) == (sorted(hot), hot[:1])


def test_salts_are_apart_and_come_with_their_ids():
    found = asked((1, 2), (1, 2), salt=b"a")
    found.note(EngineRequest(request_id="r", prompt=(1, 2), sampling=SAMPLING))
    (prefix,) = found.top(9)
    assert (prefix.ids, prefix.salt, prefix.hits) == ((1, 2), b"a", 2.0)


def test_packed_prompts_are_the_same_and_pooled_ones_are_none():
    packed = {"packed_prompt": packed_ids((1, 2, 3))}
    assert [p.ids for p in asked((), (), **packed).top(9)] == [(1, 2)]
    assert asked((1, 2), (1, 2), pooling=PoolingConfig(kind="last")).top(9) == []


def test_old_requests_fade_and_forgetting_leaves_nothing():
    found = asked((1, 2), (1, 2), *((7, n) for n in range(3000)))
    assert [p.ids for p in found.top(9)] == []
    found = asked((1, 2), (1, 2))
    found.forget()
    assert found.top(9) == []


def test_memory_is_bounded_and_what_is_asked_stays(monkeypatch):
    found = HotPrefixes(1)
    for n in range(200):
        for prompt in ((9, 9, 9), range(n * 1000, n * 1000 + 600)):
            found.note(EngineRequest(request_id="r", prompt=tuple(prompt), sampling=SAMPLING))
    assert len(found._pieces) == hot_prefixes.MOST_PIECES
    assert found.top(1)[0].ids == (9, 9, 9)


@given(st.lists(st.lists(st.integers(0, 1), max_size=8), max_size=12), st.integers(1, 9))
def test_every_hot_beginning_was_asked_twice(prompts, count):
    times = Counter(tuple(p[:end]) for p in prompts for end in range(2, len(p) + 1, 2))
    found = asked(*prompts).top(count)
    assert len(found) <= count
    for prefix in found:
        assert times[prefix.ids] >= 2
        assert prefix.hits == pytest.approx(times[prefix.ids], abs=0.2)
    assert bool(found) == any(n >= 2 for n in times.values())
