"""When blocks go to the host and when they come back, as tables; the state machine of the scheduler has the rest."""

import pytest

from fakes.host import FakeHost
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api.cache_groups import FULL, LayerAttention, sliding
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.block_tables import ABSENT
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.host_tier import PROBE_EVERY, HostTier, key_of
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import HostChanges, TransferResults
from kvasir_runtime.core.plan_builder import PlanBuilder

CHAIN = [bytes([number]) * 32 for number in range(200)]
HASHES = CHAIN[:12]


def tier(num_blocks=16, host_blocks=100, block_size=4):
    limits = Limits(
        num_blocks=num_blocks,
        block_size=block_size,
        max_batch_tokens=64,
        max_sequences=4,
        max_model_len=64,
        host_blocks=host_blocks,
        block_bytes=1000,
    )
    pool = BlockPool(num_blocks)
    return pool, HostTier(pool, limits)


def plan_of(host, step=1):
    builder = PlanBuilder(step=step, budget=64)
    host.store(builder)
    return builder


def published(pool, count):
    blocks = pool.take(count)
    for block, block_hash in zip(blocks, HASHES, strict=False):
        pool.publish(block, block_hash)
    return blocks


def resident(host, count):
    host.changed(HostChanges(added=tuple(map(key_of, HASHES[:count]))))


def test_a_published_block_is_stored_once_and_stays_pinned_until_that_is_done():
    pool, host = tier()
    blocks = published(pool, 3)
    host.add(HASHES[:3])
    builder = plan_of(host)
    assert [(one.block, one.key) for one in builder.stores] == [(blocks[n], key_of(HASHES[n])) for n in (2, 1, 0)]
    assert plan_of(host, step=2).stores == []
    pool.release(blocks)
    assert (pool.num_pinned, pool.num_cached) == (3, 0)
    host.settle(TransferResults(through=0))
    assert pool.num_pinned == 3
    host.settle(TransferResults(through=1, num_stored=3, store_s=0.5))
    assert (pool.num_pinned, pool.num_cached) == (0, 3)
    assert not host.has_work
    assert host.state.stored_tokens == 12
    assert host.state.store_bytes_per_s == 6000


def test_a_block_that_was_evicted_first_is_not_stored():
    pool, host = tier(num_blocks=4)
    pool.release(published(pool, 2))
    host.add(HASHES[:2])
    pool.release(pool.take(4))
    assert plan_of(host).stores == []
    assert not host.has_work


def test_blocks_that_wait_to_be_copied_pin_a_share_of_the_device_only():
    pool, host = tier(num_blocks=16)
    published(pool, 12)
    host.add(HASHES)
    assert [len(plan_of(host, step).stores) for step in (1, 2)] == [4, 0]
    host.settle(TransferResults(through=1))
    assert len(plan_of(host, step=3).stores) == 4
    assert host.has_work


@pytest.mark.parametrize(
    ("block_s", "want"),
    [(0.0, 32), (0.001, 50), (0.01, 10), (5.0, 1)],  # not measured; a quarter of the device; 0.1 s; one
)
def test_copies_that_take_long_pin_few_blocks(block_s, want):
    pool, host = tier(num_blocks=200)
    for block, block_hash in zip(pool.take(160), CHAIN, strict=False):
        pool.publish(block, block_hash)
    host.add(CHAIN[:1])
    plan_of(host, step=1)
    host.settle(TransferResults(through=1, num_stored=1, store_s=block_s))
    host.add(CHAIN[1:160])
    assert [len(plan_of(host, step).stores) for step in (2, 3)] == [want, 0]
    host.settle(TransferResults(through=2))
    assert len(plan_of(host, step=4).stores) == want


def test_blocks_that_are_loaded_hold_up_no_store():
    pool, host = tier(num_blocks=200)
    published(pool, 1)
    host.changed(HostChanges(added=tuple(map(key_of, CHAIN[20:60]))))
    assert host.load(PlanBuilder(step=1, budget=64), CHAIN[20:60])
    host.add(HASHES[:1])
    assert len(plan_of(host, step=2).stores) == 1


def test_without_a_tier_nothing_is_remembered():
    pool, host = tier(host_blocks=0)
    published(pool, 3)
    host.add(HASHES[:3])
    assert plan_of(host).stores == []
    assert not host.has_work
    assert host.state.capacity_tokens == 0


@pytest.mark.parametrize(
    ("resident_blocks", "hits", "limit", "want"),
    [
        (8, 0, 12, 8),
        (8, 2, 12, 8),
        (8, 0, 6, 6),  # the last token is always computed
        (3, 0, 12, 0),  # so few are computed sooner
        (8, 5, 12, 0),
        (0, 0, 12, 0),
    ],
)
def test_what_is_on_the_host_behind_the_hits_is_loaded(resident_blocks, hits, limit, want):
    _, host = tier()
    resident(host, resident_blocks)
    assert host.worth_loading(HASHES, hits, limit, token_s=0.0) == want


@pytest.mark.parametrize(("block_size", "want"), [(16, 0), (32, 2), (1072, 2)])
def test_large_blocks_are_loaded_one_by_one(block_size, want):
    """Where a state takes much memory, a block has a thousand tokens, which take long to compute."""
    _, host = tier(block_size=block_size)
    resident(host, 2)
    assert host.worth_loading(HASHES, 0, 12, token_s=0.0) == want


def loaded_in(host, pool, seconds, count=8):
    """A load of so many blocks took so long."""
    builder = PlanBuilder(step=5, budget=64)
    assert host.load(builder, HASHES[:count])
    blocks = [load.block for load in builder.loads]
    host.settle(TransferResults(through=5, loaded=tuple(blocks), load_s=seconds))
    pool.forget()
    return builder


@pytest.mark.parametrize(
    ("load_s", "token_s", "want"),
    [
        (0.8, 0.1, 8),  # a block: 0.1 s to copy, 0.4 s to compute
        (8.0, 0.1, 0),
        (8.0, 0.0, 8),  # computing was not measured
        (0.0, 1e-9, 8),  # copying was not measured
    ],
)
def test_the_quicker_of_copy_and_computation_is_taken_once_both_are_measured(load_s, token_s, want):
    pool, host = tier()
    resident(host, 8)
    loaded_in(host, pool, load_s)
    assert host.worth_loading(HASHES, 0, 12, token_s) == want


@pytest.mark.parametrize(
    ("hits", "limit", "want"),
    [(0, 200, 32), (10, 200, 42), (0, 20, 20), (98, 200, 0), (90, 200, 100)],
)
def test_the_first_load_is_a_short_one(hits, limit, want):
    pool, host = tier(num_blocks=200)
    host.changed(HostChanges(added=tuple(map(key_of, CHAIN[:100]))))
    assert host.worth_loading(CHAIN, hits, limit, token_s=0.0) == want
    loaded_in(host, pool, 0.1)
    assert host.worth_loading(CHAIN, 0, 200, token_s=0.0) == 100


def test_the_first_load_reaches_the_end_of_a_state():
    attentions = (FULL, LayerAttention(kind="state"))
    limits = Limits(
        num_blocks=200,
        block_size=4,
        max_batch_tokens=64,
        max_sequences=4,
        max_model_len=64,
        host_blocks=200,
        attentions=attentions,
    )
    host = HostTier(BlockPool(200, attentions, 4), limits)
    host.changed(HostChanges(added=(key_of(CHAIN[63], 1), *map(key_of, CHAIN[:100]))))
    assert host.worth_loading(CHAIN, 0, 200, token_s=0.0) == 64, "no shorter part is of use"
    host.changed(HostChanges(added=(key_of(CHAIN[7], 1),)))
    assert host.worth_loading(CHAIN, 0, 200, token_s=0.0) == 8


def test_a_slow_copy_is_measured_again_now_and_then():
    pool, host = tier()
    resident(host, 8)
    loaded_in(host, pool, 100.0)
    taken = [host.worth_loading(HASHES, 0, 12, 1e-6) for _ in range(2 * PROBE_EVERY)]
    assert [count for count in taken if count] == [8, 8]


def test_loaded_blocks_are_found_and_the_missing_is_forgotten():
    pool, host = tier()
    resident(host, 6)
    hits = published(pool, 1)
    pool.release(hits)
    builder = PlanBuilder(step=1, budget=64)
    assert host.load(builder, HASHES[:6])
    blocks = [load.block for load in builder.loads]
    assert host.is_loading(HASHES[1:])
    assert not host.is_loading(HASHES[:1])
    assert pool.num_pinned == 6
    host.settle(TransferResults(through=1, loaded=(blocks[0], blocks[1], blocks[3])))
    assert pool.lookup(HASHES, 12) == [[*hits, *blocks[:2]]]
    assert (pool.num_pinned, pool.num_cached, pool.num_free) == (0, 4, 12)
    assert (host.state.loaded_tokens, host.state.missed_tokens) == (12, 8)
    assert host.worth_loading(HASHES, 3, 12, 0.0) == 0
    assert not host.is_copying


def test_of_a_window_only_its_blocks_are_stored_and_loaded():
    attentions = (FULL, sliding(6))
    limits = Limits(
        num_blocks=16,
        block_size=4,
        max_batch_tokens=64,
        max_sequences=4,
        max_model_len=64,
        host_blocks=100,
        attentions=attentions,
    )
    pool = BlockPool(16, attentions, 4)
    host = HostTier(pool, limits)
    host.changed(HostChanges(added=tuple(key_of(one, group) for group in (0, 1) for one in HASHES[:6])))
    assert host.worth_loading(HASHES, 0, 12, 0.0) == 6
    builder = PlanBuilder(step=1, budget=64)
    assert host.load(builder, HASHES[:6])
    want = [key_of(one) for one in HASHES[:6]] + [key_of(one, 1) for one in HASHES[4:6]]
    assert [load.key for load in builder.loads] == want
    blocks = [load.block for load in builder.loads]
    host.settle(TransferResults(through=1, loaded=tuple(blocks)))
    assert pool.lookup(HASHES, 12) == [blocks[:6], [ABSENT] * 4 + blocks[6:]]


def served(**settings):
    runner = FakeRunner(host=FakeHost(num_slots=200, delay=settings.pop("delay", 0)))
    return serving(runner=runner, num_blocks=settings.pop("num_blocks", 16), host_blocks=200, **settings)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("delay", [0, 3])
def test_an_evicted_prefix_comes_back_from_the_host(depth, delay):
    made = served(delay=delay, depth=depth)
    long, other = list(range(1, 41)), list(range(100, 150))
    for number, prompt in enumerate((long, other, long)):
        made.submit(request(f"r{number}", prompt))
        made.finish()
    first, _, again = (made.answers[f"r{number}"] for number in range(3))
    assert again.tokens == first.tokens
    assert again.cached_tokens == 36
    state = made.scheduler.report(RuntimeState())
    assert 16 <= state.kv_host.loaded_tokens <= 36
    assert state.kv.pinned_tokens == 0


def test_others_go_on_while_a_request_waits_for_its_copy():
    made = served(delay=6, num_blocks=32)
    long = list(range(1, 41))
    made.submit(request("a", long, max_tokens=2))
    made.finish()
    made.submit(request("b", list(range(200, 300)), max_tokens=2))
    made.finish()
    made.submit(request("streams", [7, 8, 9], max_tokens=40, ignore_eos=True))
    made.step()
    made.submit(request("waits", long, max_tokens=2))
    before = len(made.answers["streams"].tokens)
    for _ in range(5):
        made.step()
    assert len(made.answers["streams"].tokens) == before + 5
    assert not made.answers["waits"].tokens
    made.finish()
    assert made.answers["waits"].tokens == made.answers["a"].tokens


@pytest.mark.parametrize(("options", "waits"), [({}, True), ({"prompt_logprobs": 0}, False)])
def test_a_request_waits_for_no_copy_that_it_may_not_use(options, waits):
    made = served(delay=6, num_blocks=64)
    long = list(range(1, 41))
    made.submit(request("a", long, max_tokens=2))
    made.finish()
    made.submit(request("b", list(range(100, 340)), max_tokens=2))
    made.finish()
    made.submit(request("gone", long, max_tokens=2))
    made.step()
    assert made.plans[-1].loads
    made.scheduler.abort("gone", made.now)
    made.submit(request("next", long, max_tokens=2, **options))
    made.step()
    assert any(join.request_id == "next" for join in made.plans[-1].joins) == (not waits)
    made.finish()
    assert made.answers["next"].tokens == made.answers["a"].tokens


def test_a_preempted_request_gets_its_blocks_back_from_the_host():
    made = served(num_blocks=20, max_sequences=4)
    for number in range(4):
        made.submit(request(f"r{number}", [number * 50 + n for n in range(1, 25)], max_tokens=40, ignore_eos=True))
    made.finish()
    state = made.scheduler.report(RuntimeState())
    assert state.totals.preemptions > 0
    assert state.kv_host.loaded_tokens > 0
    calm = serving(num_blocks=200, max_sequences=4)
    for number in range(4):
        calm.submit(request(f"r{number}", [number * 50 + n for n in range(1, 25)], max_tokens=40, ignore_eos=True))
    calm.finish()
    assert [one.tokens for one in made.answers.values()] == [one.tokens for one in calm.answers.values()]


def test_what_is_on_the_host_counts_as_cached_for_those_that_wait():
    made = served(num_blocks=16, max_sequences=1)
    long, other = list(range(1, 41)), list(range(100, 150))
    for number, prompt in enumerate((long, other)):
        made.submit(request(f"r{number}", prompt))
        made.finish()
    made.submit(request("runs", other, max_tokens=12, ignore_eos=True))
    made.step()
    arrived = made.scheduler.report(RuntimeState()).totals.uncached_prompt_tokens
    made.submit(request("waits", long))
    state = made.scheduler.report(RuntimeState())
    assert made.scheduler.pool.lookup(made.scheduler._requests["waits"].sequence.hashes, 10) != [list(range(10))]
    assert state.waiting_uncached_tokens == 4, "nine blocks of ten are on the host, and the last token is computed"
    assert state.totals.uncached_prompt_tokens - arrived == 4
    made.scheduler.host.changed(HostChanges(reset=True))
    assert made.scheduler.report(RuntimeState()).waiting_uncached_tokens > 4


@pytest.mark.parametrize(("load_s", "want"), [(0.8, 8), (8.0, 0)])  # a block: 0.1 or 1 s to copy, 0.4 s to compute
def test_blocks_on_the_host_count_as_cached_where_copying_them_is_quicker(load_s, want):
    pool, host = tier()
    resident(host, 8)
    loaded_in(host, pool, load_s)
    assert host.reach(HASHES, 12, 0.1) == want
    assert [host.covers(one, 0.1) for one in HASHES[6:10]] == [want == 8] * 2 + [False] * 2
    assert host.reach(HASHES, 12, 0.0) == 8, "computing was not measured"


def test_what_is_of_no_use_is_dropped_from_the_host_behind_the_copies_under_way():
    pool, host = tier()
    published(pool, 3)
    host.add(HASHES[:2])
    assert len(plan_of(host, step=1).stores) == 2
    resident(host, 1)
    host.add(HASHES[2:3])
    host.retract(HASHES[:3])
    assert host.has_work
    builder = plan_of(host, step=2)
    assert builder.drops == [key_of(one) for one in HASHES[:3]]
    assert builder.stores == []
    assert plan_of(host, step=3).drops == []
    assert host.worth_loading(HASHES, 0, 12, 0.0) == 0
    host.settle(TransferResults(through=3, num_stored=2))
    assert not host.has_work
