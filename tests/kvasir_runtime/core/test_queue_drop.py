"""A full queue is shared by tenants: the last requests of the one that has most of it give way."""

import msgspec
import pytest

from fakes.serving import request, serving
from kvasir_api.openai_errors import OVERLOADED
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.kinds.factory import new_kind
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.queue_drop import giving_way
from kvasir_runtime.core.waiting_queue import WaitingQueue

LIMITS = Limits(num_blocks=1000, block_size=4, max_batch_tokens=64, max_sequences=8, max_model_len=10_000)


def arrival(name, tenant, num_tokens=10, **fields):
    """Of a name of two letters, the second in the order of arrival."""
    made = request(name, range(num_tokens), tenant=tenant, **fields)
    kind = new_kind(made, limits=LIMITS, pool=BlockPool(1), now=float(ord(name[-1])))
    kind.request.uncached_estimate, kind.request.number = num_tokens, ord(name[-1])
    return kind


def victims(queue, kind, excess, gone=()):
    return [one.request.request_id for one in giving_way(queue, kind, excess, gone)]


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


def test_urgent_and_begun_requests_are_kept_and_none_gives_way_twice():
    queue = WaitingQueue()
    urgent, admitted, begun, late, later = (
        arrival("a5", "a", priority=-1),
        arrival("a6", "a"),
        arrival("a7", "a"),
        arrival("a3", "a"),
        arrival("a4", "a"),
    )
    begun.request.cached_tokens = 0
    admitted.request.request = msgspec.structs.replace(admitted.request.request, admitted=True)
    for kind in (urgent, admitted, begun, late, later):
        queue.add(kind)
    assert victims(queue, arrival("c1", "c", 1), 10) == ["a4"]
    assert victims(queue, arrival("c1", "c", 1), 10, {later}) == ["a3"]
    assert victims(queue, arrival("c1", "c", 1), 10, {later, late}) == ["a5"]
    assert victims(queue, arrival("c1", "c", 1), 10, {later, late, urgent}) == []


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


def test_those_that_give_way_are_told_when_to_come_back():
    served = serving(max_sequences=1, max_waiting_tokens=20)
    served.submit(request("first", range(1, 30), max_tokens=40))
    served.step()
    served.submit(request("g", [1] * 20, tenant="greedy"), request("s", [2] * 5, tenant="small"))
    served.scheduler.plan(served.now)
    (refusal,) = served.scheduler.deadlines.take_refusals()
    assert (refusal.request_id, refusal.code, refusal.finish_reason) == ("g", OVERLOADED, "error")
