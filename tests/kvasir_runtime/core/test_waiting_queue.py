"""The queue: order, leaving from the middle, and an estimate of work that stays cheap."""

from fakes.serving import request
from kvasir_api.hashes import extend_block_hashes
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.kinds.factory import new_kind
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.waiting_queue import WALKED_BLOCKS, WaitingQueue, uncached_estimate

LIMITS = Limits(num_blocks=1000, block_size=4, max_batch_tokens=64, max_sequences=8, max_model_len=10_000)


def waiting(name="a", num_tokens=9):
    made = new_kind(request(name, range(num_tokens)), limits=LIMITS, pool=BlockPool(1), now=0.0)
    extend_block_hashes(made.sequence.hashes, made.sequence.tokens, root=b"", block_size=4)
    made.request.uncached_estimate = num_tokens
    return made


def resident(pool, hashes):
    for block, block_hash in zip(pool.take(len(hashes)), hashes, strict=True):
        pool.publish(block, block_hash)


def test_order_of_arrival_with_the_preempted_before_all():
    queue, (first, second, third) = WaitingQueue(), (waiting(name) for name in "abc")
    queue.append(second)
    queue.append(third)
    queue.put_back(first)
    assert [item.request.request_id for item in queue] == ["a", "b", "c"]
    queue.remove(second)
    assert queue.head is first
    assert len(queue) == 2
    assert queue.uncached_tokens == 18


def test_the_estimate_follows_the_cache_up_and_down():
    pool, made = BlockPool(8), waiting(num_tokens=17)
    assert uncached_estimate(made, pool.is_resident, 4) == 17
    resident(pool, made.sequence.hashes[:3])
    made.request.uncached_estimate = uncached_estimate(made, pool.is_resident, 4)
    assert made.request.uncached_estimate == 5
    pool.release(*pool.lookup(made.sequence.hashes, 9))
    pool.take(8)
    assert uncached_estimate(made, pool.is_resident, 4) == 17


def test_one_token_is_always_computed():
    pool, made = BlockPool(8), waiting(num_tokens=8)
    resident(pool, made.sequence.hashes)
    assert uncached_estimate(made, pool.is_resident, 4) == 4


def test_a_long_walk_is_spread_over_several_estimates():
    pool, made = BlockPool(200), waiting(num_tokens=801)
    resident(pool, made.sequence.hashes)
    made.request.uncached_estimate = uncached_estimate(made, pool.is_resident, 4)
    assert made.request.uncached_estimate == 801 - 4 * WALKED_BLOCKS


def test_refresh_keeps_the_sum_right():
    pool, queue, items = BlockPool(8), WaitingQueue(), [waiting(name) for name in "abcdef"]
    for item in items:
        queue.append(item)
    resident(pool, items[0].sequence.hashes)
    queue.refresh(pool.is_resident, 4)
    assert queue.uncached_tokens == sum(item.request.uncached_estimate for item in items)
    assert [item.request.uncached_estimate for item in items] == [1, 1, 1, 1, 9, 9]
