"""What a replica fetches of one that leaves, in which order, and when it ends."""

import pytest

from fakes.engine_facts import engine_facts
from kvasir_api.hashes import block_root, prompt_block_hashes
from kvasir_api.state import KvHostState, RuntimeState
from kvasir_runtime.client.engine_client import EngineDeadError
from kvasir_runtime.server.peer_prefixes.prefetch import FetchedShare, fetch, room_tokens
from kvasir_runtime.server.peer_prefixes.warmup import OfferedPrefix
from kvasir_runtime.wire import EngineOutput, packed_ids

ALL = FetchedShare()
FACTS = engine_facts(max_model_len=1000, num_blocks=300, vocab_size=100)


class Engine:
    """What a client of the engine is to a prefetch. came: tokens of each prefix; a negative number kills the engine."""

    def __init__(self, *came, capacity=4000):
        self.came, self.requests, self.aborted = list(came), [], []
        self.hash_salt = b"secret"
        self.state = RuntimeState(kv_host=KvHostState(capacity_tokens=capacity))

    def submit(self, requests, queue):
        (request,) = requests
        self.requests.append(request)
        if (came := self.came.pop(0)) < 0:
            raise EngineDeadError("gone")
        queue.put(0, EngineOutput(request_id=request.request_id, finish_reason="length", cached_tokens=came))

    def abort(self, request_id):
        self.aborted.append(request_id)


def prefix(first, hits=2.0, peer="10.0.0.2:8002", salt=b"", length=64):
    return OfferedPrefix(salt, (first,) * length, hits=hits, kv_peer=peer)


async def fetched(engine, *prefixes, share=ALL, is_wanted=lambda: True):
    return await fetch(prefixes, engine, FACTS, share=share, is_wanted=is_wanted)


async def test_what_is_asked_most_comes_first_and_nothing_is_computed():
    engine = Engine(64, 0, 48)
    done = await fetched(engine, prefix(1, hits=2), prefix(2, hits=9, salt=b"a"), prefix(3, hits=5))
    assert (done.tokens, done.prefixes, done.offered) == (112, 2, 3)
    assert [request.packed_prompt[:4] for request in engine.requests] == [packed_ids([n]) for n in (2, 3, 1)]
    assert {request.kv_peer for request in engine.requests} == {"10.0.0.2:8002"}
    assert all(request.prefetch for request in engine.requests)
    first = engine.requests[0]
    root = block_root(salt=b"a", secret=b"secret")
    want = prompt_block_hashes(packed_ids((2,) * 64), root=root, block_size=FACTS.block_size)
    assert (first.salt, first.block_hashes) == (b"a", want)


@pytest.mark.parametrize(("capacity", "num"), [(0, 0), (255, 0), (256, 1), (700, 2), (40_000, 5)])
async def test_no_more_comes_than_a_share_of_the_host_holds(capacity, num):
    engine = Engine(*[64] * 5, capacity=capacity)
    done = await fetched(engine, *(prefix(number) for number in range(5)))
    assert done.tokens == 64 * num <= max(0, room_tokens(capacity))


async def test_what_is_given_out_nowhere_is_not_fetched():
    engine = Engine(64)
    assert (await fetched(engine, prefix(1, peer=""), prefix(2))).offered == 1
    assert [request.packed_prompt[:4] for request in engine.requests] == [packed_ids([2])]


async def test_a_replica_that_leaves_itself_fetches_no_more():
    engine, left = Engine(64, 64, 64), [True, True, False]
    assert (await fetched(engine, *map(prefix, range(3)), is_wanted=lambda: left.pop(0))).prefixes == 2


async def test_an_engine_that_ended_brings_nothing():
    assert (await fetched(Engine(-1, -1), prefix(1), prefix(2))).tokens == 0


async def test_several_that_fetch_from_one_begin_with_different_prefixes_and_hold_more_together():
    offered = [prefix(number, hits=9 - number, salt=b"s" * 99) for number in range(9)]
    firsts = []
    for index in range(3):
        engine = Engine(*[64] * 9, capacity=4 * 64 * len(offered))
        share = FetchedShare(index=index, of=3)
        assert (await fetched(engine, *offered, share=share)).prefixes == 9, "where there is room all are fetched"
        came = [request.packed_prompt for request in engine.requests]
        own = [packed_ids(one.ids) for one in offered if share.has(one)]
        assert came == own + [ids for ids in map(packed_ids, (one.ids for one in offered)) if ids not in own]
        firsts += own
    assert sorted(firsts) == sorted(packed_ids(one.ids) for one in offered)
