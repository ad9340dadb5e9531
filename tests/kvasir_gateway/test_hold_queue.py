"""Held requests: tenants take turns, none is kept out by another, and every bound holds at every moment."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvasir_gateway.hold_queue import HeldRequest, HoldLimits, HoldQueue


def held(name, *, service="s", tenant=b"", num_bytes=1, since_s=0.0):
    return HeldRequest(id=name, service=service, tenant=tenant, num_bytes=num_bytes, since_s=since_s)


def filled(*requests, **limits):
    queue = HoldQueue(HoldLimits(**limits))
    for request in requests:
        assert queue.add(request) == []
    return queue


def order(queue, service="s"):
    return [request.id for request in queue.in_order(service)]


def test_one_tenants_requests_go_in_order_of_arrival():
    queue = filled(held("a"), held("b"), held("c"))
    assert order(queue) == ["a", "b", "c"]
    assert queue.num_requests("s") == queue.num_bytes("s") == 3


def test_tenants_take_turns():
    queue = filled(*(held(f"a{i}", tenant=b"a") for i in range(3)), held("b0", tenant=b"b"), held("c0", tenant=b"c"))
    assert order(queue) == ["a0", "b0", "c0", "a1", "a2"]
    queue.release(queue.first("s"))
    assert order(queue) == ["b0", "c0", "a1", "a2"]


def test_a_tenant_has_as_many_requests_in_a_turn_as_its_weight():
    heavy = [HeldRequest(id=f"a{i}", service="s", tenant=b"a", weight=3) for i in range(5)]
    queue = filled(*heavy, *(held(f"b{i}", tenant=b"b") for i in range(3)))
    expected = ["a0", "a1", "a2", "b0", "a3", "a4", "b1", "b2"]
    for count in range(len(expected)):
        assert order(queue) == expected[count:]
        queue.release(queue.first("s"))


def test_who_comes_last_waits_for_one_turn_of_each_tenant():
    queue = filled(*(held(f"a{i}", tenant=b"a") for i in range(100)))
    queue.add(held("b", tenant=b"b"))
    assert order(queue).index("b") == 1


def test_services_do_not_wait_for_each_other():
    queue = filled(held("a", service="one"), held("b", service="two"))
    assert (order(queue, "one"), order(queue, "two"), set(queue.services())) == (["a"], ["b"], {"one", "two"})
    queue.remove("a")
    assert (queue.first("one"), queue.services()) == (None, ("two",))


@pytest.mark.parametrize(
    ("limits", "new", "gives_way"),
    [
        ({"max_requests": 3}, held("new", tenant=b"b"), ["a2"]),
        ({"max_requests": 3}, held("new", service="other", tenant=b"a"), ["a2"]),
        ({"max_requests": 3}, held("new", tenant=b"a"), None),
        ({"max_bytes": 30}, held("new", tenant=b"b", num_bytes=9), ["a2"]),
        ({"max_bytes": 30}, held("new", tenant=b"b", num_bytes=25), None),
        ({"max_bytes": 30}, held("new", tenant=b"b", num_bytes=31), None),
        ({"max_requests": 4, "max_bytes": 30}, held("new", tenant=b"b", num_bytes=15), ["a2", "a1"]),
    ],
)
def test_in_a_full_queue_the_newest_of_the_largest_share_give_way(limits, new, gives_way):
    queue = filled(*(held(f"a{i}", tenant=b"a", num_bytes=10) for i in range(3)), **limits)
    found = queue.add(new)
    assert (found if found is None else [request.id for request in found]) == gives_way
    assert len(queue) == (3 if gives_way is None else 4 - len(gives_way))


def test_requests_expire_in_order_of_arrival():
    queue = filled(*(held(f"a{at}", since_s=float(at)) for at in range(5)), max_wait_s=10.0)
    assert [request.id for request in queue.expired(12.0)] == ["a0", "a1", "a2"]
    assert queue.expired(9.9) == []
    assert len(queue) == 5


class Held(RuleBasedStateMachine):
    """Beside a list of what was added and has not left."""

    @initialize(count=st.integers(1, 6), num_bytes=st.integers(1, 60))
    def begin(self, count, num_bytes):
        self.queue = HoldQueue(HoldLimits(max_requests=count, max_bytes=num_bytes))
        self.there = {}
        self.number = 0

    @rule(service=st.sampled_from("st"), tenant=st.sampled_from([b"a", b"b", b"c"]), num_bytes=st.integers(0, 40))
    def add(self, service, tenant, num_bytes):
        request = held(f"r{self.number}", service=service, tenant=tenant, num_bytes=num_bytes)
        self.number += 1
        before = dict(self.there)
        dropped = self.queue.add(request)
        if dropped is None:
            assert self.there == before
            return
        self.there[request.id] = request
        for other in dropped:
            assert (other.service, other.tenant) != (service, tenant)
            del self.there[other.id]

    @precondition(lambda self: self.there)
    @rule(which=st.integers(0, 100))
    def leave(self, which):
        name = list(self.there)[which % len(self.there)]
        assert self.queue.remove(name) == self.there.pop(name)
        assert self.queue.remove(name) is None

    @rule(service=st.sampled_from("st"))
    def go(self, service):
        expected = order(self.queue, service)
        request = self.queue.first(service)
        assert [request.id] == expected[:1] if request else not expected
        if request:
            self.queue.release(request)
            del self.there[request.id]
            assert order(self.queue, service) == expected[1:]

    @invariant()
    def sums_hold(self):
        if not hasattr(self, "queue"):
            return
        assert len(self.queue) == len(self.there) <= self.queue.limits.max_requests
        for service in "st":
            mine = [request for request in self.there.values() if request.service == service]
            assert sorted(order(self.queue, service)) == sorted(request.id for request in mine)
            assert self.queue.num_bytes(service) == sum(request.num_bytes for request in mine)
        assert sum(request.num_bytes for request in self.there.values()) <= self.queue.limits.max_bytes


TestHeld = Held.TestCase
