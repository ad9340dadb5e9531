"""A full queue is shared by tenants: a few requests of the one that has most of it give way."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.serving import request, serving
from kvasir_api.openai_errors import OVERLOADED
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.kinds.factory import new_kind
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.queue_drop import MOST, requests_giving_way, tokens_giving_way
from kvasir_runtime.core.waiting_queue import WaitingQueue

LIMITS = Limits(num_blocks=1000, block_size=4, max_batch_tokens=64, max_sequences=8, max_model_len=10_000)


def arrival(name, tenant, num_tokens=10, **fields):
    """Of a name of two letters, the second in the order of arrival."""
    made = request(name, range(num_tokens), tenant=tenant, **fields)
    kind = new_kind(made, limits=LIMITS, pool=BlockPool(1), now=float(ord(name[-1])))
    kind.request.uncached_estimate, kind.request.number = num_tokens, ord(name[-1])
    return kind


def victims(queue, kind, excess, gone=()):
    return [one.request.request_id for one in tokens_giving_way(queue, kind, excess, gone)]


@pytest.mark.parametrize(
    ("new", "excess", "want"),
    [
        (arrival("c1", "c"), 5, ["a4"]),  # the last one of the longest
        (arrival("c1", "c"), 15, ["a4", "a3"]),
        (arrival("c1", "c"), 25, ["a4", "a3", "a2"]),  # as long as b's by then, and it came first
        (arrival("b9", "b"), 5, ["a4"]),
        (arrival("a9", "a"), 5, []),  # its own is the longest
        (arrival("c1", "c", 50), 5, []),  # its own would be
        (arrival("c1", "c", 50, weight=10.0), 5, ["a4"]),
        (arrival("c1", "c"), 100, []),  # not even all of the others
    ],
)
def test_the_longest_queue_by_weight_gives_way_from_its_end(new, excess, want):
    queue = WaitingQueue()
    for name in ("a1", "a2", "a3", "a4", "b1", "b2"):
        queue.add(arrival(name, name[0]))
    assert victims(queue, new, excess) == want


@pytest.mark.parametrize(
    ("tokens", "excess", "want"),
    [
        ((1200, 8, 8, 8), 5, ["a4"]),  # the last that suffices
        ((1200, 8, 8, 8), 9, ["a1"]),  # one, where the small ones would have to be several
        ((8, 30, 20, 8), 19, ["a3"]),
        ((8, 30, 20, 8), 21, ["a2"]),
        ((8, 30, 20, 8), 35, ["a2", "a4"]),  # the largest, then the last that suffices
        ((8, 30, 20, 8), 45, ["a2", "a3"]),
        ((1,) * MOST, MOST, [f"a{number}" for number in range(MOST, 0, -1)]),
        ((1,) * (MOST + 1), MOST + 1, []),  # more than may give way to one
    ],
)
def test_the_fewest_give_way(tokens, excess, want):
    queue = WaitingQueue()
    for number, num_tokens in enumerate(tokens, 1):
        queue.add(arrival(f"a{number}", "a", num_tokens))
    assert victims(queue, arrival("c1", "c", 0), excess) == want


@pytest.mark.parametrize(
    ("priority", "excess", "want"),
    [
        (0, 20, ["a4", "a3"]),
        (0, 21, []),  # the rest is more urgent
        (1, 5, ["a4"]),
        (1, 15, []),
        (-1, 35, ["a4", "a3", "a2", "a1"]),
        (2, 5, []),
    ],
)
def test_none_gives_way_to_one_that_is_less_urgent(priority, excess, want):
    queue = WaitingQueue()
    for name, own in (("a1", -1), ("a2", -1), ("a3", 0), ("a4", 1)):
        queue.add(arrival(name, "a", priority=own))
    assert victims(queue, arrival("c1", "c", 1, priority=priority), excess) == want


def test_begun_requests_are_kept_and_none_gives_way_twice():
    queue = WaitingQueue()
    admitted, begun, late, later = (arrival(name, "a") for name in ("a6", "a7", "a3", "a4"))
    begun.request.cached_tokens = 0
    admitted.request.request = msgspec.structs.replace(admitted.request.request, admitted=True)
    for kind in (admitted, begun, late, later):
        queue.add(kind)
    assert victims(queue, arrival("c1", "c", 1), 10) == ["a4"]
    assert victims(queue, arrival("c1", "c", 1), 10, {later}) == ["a3"]
    assert victims(queue, arrival("c1", "c", 1), 10, {later, late}) == []


@pytest.mark.parametrize(
    ("new", "excess", "want"),
    [
        (arrival("c1", "c", 5000), 1, ["a4"]),  # whatever its length
        (arrival("c1", "c"), 2, ["a4", "a3"]),
        (arrival("b9", "b"), 1, []),  # it would have as many
        (arrival("a9", "a"), 1, []),
    ],
)
def test_requests_give_way_by_number_where_that_is_bounded(new, excess, want):
    queue = WaitingQueue()
    for name in ("a1", "a2", "a3", "a4"):
        queue.add(arrival(name, "a", 2))
    for name in ("b1", "b2", "b3"):
        queue.add(arrival(name, "b", 900))
    assert [one.request.request_id for one in requests_giving_way(queue, new, excess, ())] == want


WEIGHTS = {"a": 1.0, "b": 2.0, "c": 0.5}
ARRIVALS = st.tuples(st.sampled_from("abc"), st.integers(1, 400), st.integers(-1, 1))


@given(st.lists(ARRIVALS, max_size=60), st.integers(1, 1000))
def test_a_full_queue_is_within_its_bound_and_only_those_above_their_share_lose(arrivals, limit):
    queue = WaitingQueue()
    for number, (tenant, num_tokens, priority) in enumerate(arrivals):
        new = arrival(chr(number + 256), tenant, num_tokens, priority=priority, weight=WEIGHTS[tenant])
        excess = queue.uncached_tokens + num_tokens - limit
        if excess > 0:
            found = tokens_giving_way(queue, new, excess, ())
            if not found:
                continue
            assert len({kind.request.number for kind in found}) == len(found) <= MOST
            assert all(kind.request.request.priority >= priority for kind in found)
            for kind in found:
                held = queue.tokens_by_weight()
                own = held.get(tenant, 0.0) + num_tokens / WEIGHTS[tenant]
                assert held[kind.request.request.tenant] > own
                queue.remove(kind)
        queue.add(new)
        assert queue.uncached_tokens <= limit


@given(st.lists(ARRIVALS, min_size=1, max_size=60), st.integers(1, 400))
def test_of_equally_urgent_requests_none_loses_below_the_share_of_its_tenant(arrivals, num_tokens):
    """The share of a tenant in the bound, by the weights of all that wait and of the new one."""
    queue = WaitingQueue()
    for number, (tenant, own_tokens, _) in enumerate(arrivals):
        queue.add(arrival(chr(number + 256), tenant, own_tokens, weight=WEIGHTS[tenant]))
    weights = sum(WEIGHTS[tenant] for tenant in queue.tenants) + 1.0
    limit = queue.uncached_tokens
    for kind in tokens_giving_way(queue, arrival("n1", "n", num_tokens), num_tokens, ()):
        assert queue.tokens_by_weight()[kind.request.request.tenant] > limit / weights
        queue.remove(kind)


def test_a_tenant_finds_its_place_in_a_queue_that_another_has_filled():
    served = serving(max_sequences=1, max_waiting_tokens=100)
    served.submit(request("first", range(1, 30), tenant="greedy", max_tokens=40))
    served.step()
    served.submit(*(request(f"g{number}", [number + 1] * 10, tenant="greedy") for number in range(12)))
    assert [name for name, answer in served.answers.items() if answer.reason] == ["g10", "g11"]
    served.submit(*(request(f"s{number}", [number + 50] * 10, tenant="small") for number in range(7)))
    assert served.answers["s5"].reason == "error", "half of the queue is its share"
    assert served.answers["s6"].reason == "error"
    served.step()
    ended = [name for name, answer in served.answers.items() if answer.reason]
    assert ended == ["g5", "g6", "g7", "g8", "g9", "g10", "g11", "s5", "s6"]
    assert served.answers["g9"].message.startswith("The queue is full, and other tenants have less of it")
    assert served.scheduler.report(RuntimeState()).waiting_uncached_tokens == 100
    served.finish()
    assert {served.answers[f"s{number}"].reason for number in range(5)} <= {"length", "stop"}


def test_a_tenant_finds_its_place_in_a_queue_that_another_has_filled_with_requests():
    served = serving(max_sequences=1, max_waiting=6)
    served.submit(request("first", range(1, 30), tenant="greedy", max_tokens=40))
    served.step()
    served.submit(*(request(f"g{number}", [number + 1] * 10, tenant="greedy") for number in range(6)))
    assert not any(answer.reason for answer in served.answers.values()), "as long as no other tenant waits"
    served.submit(*(request(f"s{number}", [number + 50] * 200, tenant="small") for number in range(5)))
    served.step()
    assert [name for name, answer in served.answers.items() if answer.reason] == ["g3", "g4", "g5", "s3", "s4"]
    assert "at most 6 may" in served.answers["s3"].message
    assert served.scheduler.report(RuntimeState()).waiting == 6
    served.finish()


@pytest.mark.parametrize("bound", [{"max_waiting": 8}, {"max_waiting_tokens": 80}], ids=["requests", "tokens"])
def test_a_tenant_finds_its_place_beside_requests_of_another_that_never_give_way(bound):
    """Further choices of one request, or streams that go on behind their tokens, without an end."""
    served = serving(max_sequences=1, **bound)
    served.submit(request("first", range(1, 30), tenant="greedy", max_tokens=40))
    served.step()
    greedy = [request(f"g{number}", [number + 1] * 10, tenant="greedy") for number in range(40)]
    served.submit(*(msgspec.structs.replace(one, admitted=True) for one in greedy))
    served.submit(*(request(f"s{number}", [number + 50] * 10, tenant="small") for number in range(12)))
    served.submit(request("own", [99] * 10, tenant="greedy"))
    served.step()
    refused = [name for name, answer in served.answers.items() if answer.reason == "error"]
    assert refused == ["s8", "s9", "s10", "s11", "own"], "it has the whole bound, and no more"
    served.finish()


def test_a_large_request_gives_way_and_not_a_hundred_small_ones():
    served = serving(max_sequences=1, max_waiting_tokens=2000, max_model_len=4000, num_blocks=4000)
    served.submit(request("first", range(1, 30), max_tokens=40, tenant="a"))
    served.step()
    served.submit(request("large", [9] * 1200, tenant="a"))
    served.submit(*(request(f"s{number}", [number + 1] * 8, tenant="a") for number in range(100)))
    served.submit(request("new", [7] * 800, tenant="b"))
    served.step()
    assert [name for name, answer in served.answers.items() if answer.reason == "error"] == ["large"]


def test_those_that_give_way_are_told_when_to_come_back():
    served = serving(max_sequences=1, max_waiting_tokens=20)
    served.submit(request("first", range(1, 30), max_tokens=40))
    served.step()
    served.submit(request("g", [1] * 20, tenant="greedy"), request("s", [2] * 5, tenant="small"))
    served.scheduler.plan(served.now)
    (refusal,) = served.scheduler.deadlines.take_refusals()
    assert (refusal.request_id, refusal.code, refusal.finish_reason) == ("g", OVERLOADED, "error")
