"""The pool on its own: who holds a block, who may have it next."""

import pytest

from kvasir_runtime.core.blocks import BlockPool


def counts(pool):
    return pool.num_pinned, pool.num_cached, pool.num_free


def published(pool, *names):
    """Blocks taken, published under one-letter hashes and released, in this order of table."""
    blocks = pool.take(len(names))
    for block, name in zip(blocks, names, strict=True):
        assert pool.publish(block, name)
    pool.release(blocks)
    return blocks


def test_a_new_pool_is_free():
    assert counts(BlockPool(4)) == (0, 0, 4)


@pytest.mark.parametrize("size", [0, -1])
def test_a_pool_needs_blocks(size):
    with pytest.raises(ValueError, match="expected at least 1"):
        BlockPool(size)


def test_a_block_is_free_cached_or_pinned():
    pool = BlockPool(4)
    blocks = pool.take(3)
    assert counts(pool) == (3, 0, 1)
    pool.publish(blocks[0], b"a")
    pool.release(blocks)
    assert counts(pool) == (0, 1, 3)
    assert pool.lookup([b"a"], 9) == [blocks[:1]]
    assert pool.share(blocks[:1]) == 1
    assert counts(pool) == (1, 0, 3)
    assert pool.share(blocks[:1]) == 0
    assert pool.references(blocks[0]) == 2


def test_blocks_that_were_used_are_taken_before_those_that_never_were():
    """The kernel gives memory to a block when it is first written, so what was never taken costs nothing."""
    pool = BlockPool(100)
    used = set()
    for _ in range(30):
        first, second = pool.take(2), pool.take(3)
        used.update(first, second)
        pool.release(first)
        pool.release(second)
    assert used == {0, 1, 2, 3, 4}


def test_take_refuses_what_it_does_not_have():
    pool = BlockPool(2)
    assert not pool.can_take(3)
    with pytest.raises(ValueError, match="3 blocks wanted, 2 available"):
        pool.take(3)


def test_blocks_that_will_be_shared_are_not_counted_twice():
    pool = BlockPool(3)
    blocks = published(pool, b"a", b"b")
    assert pool.can_take(3)
    assert pool.can_take(1, blocks)
    assert not pool.can_take(2, blocks)


def test_lookup_stops_at_the_first_gap_and_at_the_limit():
    pool = BlockPool(4)
    blocks = published(pool, b"a", b"b", b"d")
    assert pool.lookup([b"a", b"b", b"c", b"d"], 9) == [blocks[:2]]
    assert pool.lookup([b"a", b"b"], 1) == [blocks[:1]]
    assert pool.lookup([b"x"], 9) == [[]]


def test_tails_are_evicted_before_heads_and_old_before_new():
    pool = BlockPool(4)
    published(pool, b"a1", b"a2")
    published(pool, b"b1", b"b2")
    order = []
    for _ in range(4):
        pool.take(1)
        order.append([name for name in (b"a1", b"a2", b"b1", b"b2") if not pool.is_resident(name)])
    assert order == [[b"a2"], [b"a1", b"a2"], [b"a1", b"a2", b"b2"], [b"a1", b"a2", b"b1", b"b2"]]
    assert pool.lost == [b"a2", b"a1", b"b2", b"b1"]


def test_a_hit_makes_a_block_recent():
    pool = BlockPool(2)
    (old,) = published(pool, b"old")
    published(pool, b"new")
    pool.share([old])
    pool.release([old])
    pool.take(1)
    assert pool.is_resident(b"old")
    assert not pool.is_resident(b"new")


def test_the_second_copy_of_a_block_is_not_published():
    pool = BlockPool(3)
    first, second = pool.take(2)
    assert pool.publish(first, b"a")
    assert not pool.publish(second, b"a")
    pool.release([first])
    pool.release([second])
    assert counts(pool) == (0, 1, 2)


def test_blocks_named_by_a_plan_in_flight_stay_pinned():
    pool = BlockPool(2)
    blocks = pool.take(2)
    pool.release(blocks, step=7)
    assert counts(pool) == (2, 0, 0)
    assert pool.num_leaving == 2
    pool.settle(6)
    assert not pool.can_take(1)
    pool.settle(7)
    assert counts(pool) == (0, 0, 2)
    assert pool.num_leaving == 0


def test_mistakes_are_said():
    pool = BlockPool(1)
    with pytest.raises(ValueError, match="not held"):
        pool.release([0])
    with pytest.raises(ValueError, match="not held"):
        pool.publish(0, b"a")
