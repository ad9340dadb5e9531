"""Forgetting, while copies to the host and back are under way."""

from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.host_tier import HostTier, key_of
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import HostChanges, TransferResults
from kvasir_runtime.core.plan_builder import PlanBuilder

LIMITS = Limits(
    num_blocks=16,
    block_size=4,
    max_batch_tokens=64,
    max_sequences=4,
    max_model_len=64,
    host_blocks=100,
    block_bytes=1000,
)
MINE, OTHERS = b"m" * 8, b"o" * 8


def tier():
    pool = BlockPool(16)
    return pool, HostTier(pool, LIMITS)


def plan_of(host, step):
    builder = PlanBuilder(step=step, budget=64)
    host.store(builder)
    return builder


def chain_of(owner, count=6):
    return [bytes([number]) * 24 + owner for number in range(count)]


def test_what_was_loaded_while_everything_was_forgotten_is_not_found():
    pool, host = tier()
    host.changed(HostChanges(added=tuple(map(key_of, chain_of(MINE)))))
    builder = PlanBuilder(step=1, budget=64)
    assert host.load(builder, chain_of(MINE))
    blocks = [load.block for load in builder.loads]
    pool.forget()
    host.forget()
    host.settle(TransferResults(through=1, loaded=tuple(blocks)))
    assert pool.lookup(chain_of(MINE), 12) == [[]]
    assert pool.num_free == 16


def test_a_tenant_is_forgotten_with_its_copies_that_are_under_way():
    """A copy to the host that has begun ends behind the order to forget: the next plan drops it again."""
    pool, host = tier()
    hashes = chain_of(MINE, 2)
    for block, one in zip(pool.take(2), hashes, strict=True):
        pool.publish(block, one)
    host.add(hashes)
    keys = [key_of(one) for one in hashes]
    assert {store.key for store in plan_of(host, step=1).stores} == set(keys)
    host.forget(MINE)
    assert host.has_work
    host.changed(HostChanges(added=tuple(keys[:1])))
    assert not host.state.cached_tokens
    assert plan_of(host, step=2).drops == keys
    host.changed(HostChanges(added=tuple(keys[1:])))
    assert not host.state.cached_tokens, "the plan that drops them is under way"
    host.settle(TransferResults(through=1, num_stored=2))
    host.changed(HostChanges(added=tuple(keys)))
    assert not host.state.cached_tokens
    host.settle(TransferResults(through=2))
    host.changed(HostChanges(removed=tuple(keys)))
    host.changed(HostChanges(added=tuple(keys)))
    assert host.state.cached_tokens == 8, "another process has computed them since"


def test_what_a_forgotten_tenant_computes_again_is_stored_and_found():
    pool, host = tier()
    hashes = chain_of(MINE, 1)
    pool.publish(pool.take(1)[0], hashes[0])
    host.changed(HostChanges(added=(key_of(hashes[0]),)))
    host.forget(MINE)
    host.add(hashes)
    plan = plan_of(host, step=1)
    assert (plan.drops, [store.key for store in plan.stores]) == ([key_of(hashes[0])],) * 2
    host.changed(HostChanges(removed=(key_of(hashes[0]),)))
    host.changed(HostChanges(added=(key_of(hashes[0]),)))
    assert host.state.cached_tokens == 4


def test_forgetting_one_tenant_keeps_what_is_loaded_for_another():
    pool, host = tier()
    builders = []
    for step, owner in enumerate((MINE, OTHERS)):
        host.changed(HostChanges(added=tuple(map(key_of, chain_of(owner)))))
        builders.append(PlanBuilder(step=step, budget=64))
        assert host.load(builders[-1], chain_of(owner))
    pool.forget(MINE)
    host.forget(MINE)
    assert not host.is_loading(chain_of(MINE)), "no request waits for what will not be found"
    assert host.is_loading(chain_of(OTHERS))
    blocks = [[load.block for load in builder.loads] for builder in builders]
    host.settle(TransferResults(through=1, loaded=(*blocks[0], *blocks[1])))
    assert pool.lookup(chain_of(MINE), 12) == [[]]
    assert pool.lookup(chain_of(OTHERS), 12) == [blocks[1]]
    assert pool.num_pinned == 0
