"""The queue: order, leaving from the middle, and an estimate of work that stays cheap."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api.hashes import extend_block_hashes
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.fair_shares import FairShares
from kvasir_runtime.core.kinds.factory import new_kind
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.request_state import AGEING_S
from kvasir_runtime.core.waiting_queue import SHARED_EVERY, WALKED_BLOCKS, WaitingQueue, uncached_estimate

LIMITS = Limits(num_blocks=1000, block_size=4, max_batch_tokens=64, max_sequences=8, max_model_len=10_000)


def waiting(name="a", num_tokens=9, arrived_at=0.0, **fields):
    made = new_kind(request(name, range(num_tokens), **fields), limits=LIMITS, pool=BlockPool(1), now=arrived_at)
    extend_block_hashes(made.sequence.hashes, made.sequence.tokens, root=b"", block_size=4)
    made.request.uncached_estimate = num_tokens
    made.request.number = ord(name[0])
    return made


def queue_of(*items):
    queue = WaitingQueue()
    for item in items:
        queue.add(item)
    return queue


def order(queue, now=0.0, shares=None):
    return "".join(kind.request.request_id for kind in queue.in_order(shares or FairShares(), now))


def resident(pool, hashes):
    for block, block_hash in zip(pool.take(len(hashes)), hashes, strict=True):
        pool.publish(block, block_hash)


def test_order_of_arrival_also_for_those_that_come_back():
    first, second, third = (waiting(name, arrived_at=at) for at, name in enumerate("abc"))
    queue = queue_of(second, third)
    queue.add(first)  # it was preempted
    assert order(queue) == "abc"
    queue.remove(second)
    assert order(queue) == "ac"
    assert (len(queue), queue.uncached_tokens) == (2, 18)


def test_the_earliest_deadline_comes_first_within_a_priority():
    relaxed, urgent = waiting("a", ttft_s=60.0), waiting("b", arrived_at=4.0, ttft_s=2.0)
    plain, late, batch = waiting("c"), waiting("d", arrived_at=55.0), waiting("e", ttft_s=0.5, priority=1)
    assert order(queue_of(relaxed, plain, batch, urgent, late), now=5.0) == "bcade"


def test_a_lower_priority_comes_first_until_the_other_has_aged():
    batch = waiting("a", priority=2)
    for now, want in ((0.0, "ba"), (19.0, "ba"), (20.0, "ab")):
        assert order(queue_of(batch, waiting("b", arrived_at=now)), now) == want


def test_a_request_that_was_preempted_has_not_waited_while_it_ran():
    """A batch job that ran for long and lost its blocks still comes behind what is more urgent."""
    served = serving(runner=FakeRunner(model=FakeModel(table=tuple(range(1, 61)))), num_blocks=9, max_sequences=2)
    served.submit(request("first", range(1, 8), max_tokens=20))
    served.submit(request("batch", range(2, 9), max_tokens=20, priority=2))
    scheduler, served.now = served.scheduler, 600.0
    while not scheduler._counters.preemptions:
        served.step()
    assert scheduler._requests["batch"].request.phase == "waiting"
    served.submit(request("urgent", [1], tenant="other"))
    for later_s, want in ((0.0, ["urgent", "batch"]), (20.0, ["batch", "urgent"])):
        now = served.now + later_s
        if later_s:
            scheduler.abort("urgent", now)
            scheduler.submit(request("urgent", [1], tenant="other"), now)
        kinds = scheduler._waiting.in_order(FairShares(), now)
        assert [kind.request.request_id for kind in kinds] == want


def test_a_flow_that_is_served_does_not_age():
    """Else a tenant with a long queue would get ahead of those that have just come."""
    queue = queue_of(*(waiting(name, tenant="flood") for name in "abc"))
    queue.remove(next(iter(queue.in_order(FairShares(), 50.0))), admitted_at=50.0)
    assert order(queue, 55.0) == "bc"
    shares = FairShares()
    shares.level, flood = 5.0, waiting("z", tenant="flood")
    shares.admitted(flood, 9)
    queue.add(waiting("d", arrived_at=58.0, tenant="other"))
    assert order(queue, 59.0, shares) == "dbc"
    assert order(queue, 61.0, shares) == "bcd", "their flow was not served for AGEING_S"


class CountedShares(FairShares):
    """Counts how often a counter is asked for, once for each request that is ranked."""

    __slots__ = ("asked",)

    def __init__(self):
        super().__init__()
        self.asked = 0

    def counter(self, tenant):
        self.asked += 1
        return super().counter(tenant)


def test_flows_are_ranked_once_however_many_requests_are_looked_at():
    """A client chooses its priorities, so it chooses the number of its flows."""
    names = [chr(1000 + number) for number in range(200)]
    queue = queue_of(*(waiting(name, 1, priority=number % 100) for number, name in enumerate(names)))
    shares = CountedShares()
    assert len(list(queue.in_order(shares, 0.0))) == 200
    assert shares.asked <= 3 * 200


def test_nothing_is_ranked_where_no_row_is_free():
    served = serving(max_sequences=2)
    for number in range(2):
        served.submit(request(f"r{number}", [1], max_tokens=9, ignore_eos=True))
    served.step()
    shares = served.scheduler._shares = served.scheduler._admission._shares = CountedShares()
    for number in range(9):
        served.submit(request(f"w{number}", [1], tenant=f"t{number % 2}", priority=number))
    asked = shares.asked
    served.step()
    assert shares.asked == asked
    served.finish()
    assert shares.asked > asked


def test_an_admission_moves_all_flows_of_its_tenant_back():
    shares = FairShares()
    first, second, other = waiting("a", tenant="x"), waiting("b", tenant="x", priority=1), waiting("c", tenant="y")
    queue = queue_of(first, second, other, waiting("d", tenant="y", priority=1))
    seen = ""
    for kind in queue.in_order(shares, 0.0):
        queue.remove(kind, admitted_at=0.0)
        shares.admitted(kind, {"a": 50, "b": 1, "c": 9, "d": 1}[kind.request.request_id])
        seen += kind.request.request_id
    assert seen == "acdb"
    assert not queue.tenants


@given(
    flows=st.lists(st.tuples(st.integers(-3, 3), st.sampled_from("abc")), min_size=1, max_size=6, unique=True),
    rate=st.integers(1, 3),
    stubborn=st.data(),
)
@settings(max_examples=60, deadline=None)
def test_no_flow_starves(flows, rate, stubborn):
    """One request is admitted each second and others keep coming: the first of every flow gets in within the bound."""
    queue, shares, number = WaitingQueue(), FairShares(), 0
    victim_priority, victim_tenant = stubborn.draw(st.sampled_from(flows))
    victim = waiting("v", priority=victim_priority, tenant=victim_tenant)
    queue.add(victim)
    shares.admitted(waiting("w", tenant=victim_tenant), 10_000)
    bound_s = (victim_priority + 3 + 1) * AGEING_S + len(flows)
    for now in range(int(bound_s) + 1):
        for priority, tenant in flows * rate:
            if (priority, tenant) != (victim_priority, victim_tenant):
                number += 1
                other = waiting("x", 1, float(now), priority=priority, tenant=tenant)
                other.request.number = 1000 + number
                queue.add(other)
        chosen = next(iter(queue.in_order(shares, float(now))))
        queue.remove(chosen, admitted_at=float(now))
        shares.admitted(chosen, 1)
        if chosen is victim:
            return
    raise AssertionError("it starved")


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
    pool, items = BlockPool(8), [waiting(name) for name in "abcdef"]
    queue = queue_of(*items)
    resident(pool, items[0].sequence.hashes)
    queue.refresh(pool.is_resident, 4)
    assert queue.uncached_tokens == sum(item.request.uncached_estimate for item in items)
    assert [item.request.uncached_estimate for item in items] == [1, 1, 1, 1, 9, 9]


def test_a_prefix_is_shared_with_those_that_wait_and_those_that_run():
    leader, follower = waiting("a", num_tokens=401), waiting("b", num_tokens=401)
    queue = WaitingQueue()
    assert queue.shared(follower, 0, lambda _: False, 4) == 0
    queue.add(leader)
    whole = 400 // (4 * SHARED_EVERY) * 4 * SHARED_EVERY
    assert queue.shared(follower, 0, lambda _: False, 4) == whole
    assert queue.shared(follower, 90, lambda _: False, 4) == whole - 360
    queue.remove(leader)
    assert queue.shared(follower, 0, lambda _: False, 4) == 0
    due = set(leader.sequence.hashes[: 2 * SHARED_EVERY])
    assert queue.shared(follower, 0, due.__contains__, 4) == 2 * SHARED_EVERY * 4
    assert queue.shared(follower, 2 * SHARED_EVERY, due.__contains__, 4) == 0


def test_what_is_shared_is_counted_while_it_waits():
    leader, follower = waiting("a", num_tokens=401), waiting("b", num_tokens=401)
    queue = queue_of(leader)
    follower.request.shared_tokens = queue.shared(follower, 0, lambda _: False, 4)
    queue.add(follower)
    last = waiting("c", num_tokens=9)
    assert (queue.uncached_tokens, queue.shared_before(last)) == (802, follower.request.shared_tokens)
    other = waiting("d", num_tokens=9, tenant="another")
    assert queue.shared_before(other) == 0
    cached = set(leader.sequence.hashes[:48])
    for _ in range(4):
        queue.refresh(cached.__contains__, 4)
    assert queue.shared_before(last) == max(0, 400 // 64 * 64 - 48 * 4)
    queue.remove(follower)
    assert queue.shared_before(last) == 0
    assert queue.shared(follower, 0, lambda _: False, 4) > 0
    queue.remove(leader)
    assert not queue._prefixes
