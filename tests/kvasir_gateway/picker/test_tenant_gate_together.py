"""Gates of several gateways, each of which has what the others publish: what runs counts at all of them."""

import pytest

from fakes.clock import Now
from fakes.gateway import grant
from kvasir_api.tenant_keys import TenantKeys
from kvasir_gateway.picker.tenant_gate import Caller, TenantGate
from kvasir_gateway.placements import TenantUse

TIMEOUT_S = 3600.0


@pytest.fixture
def clock():
    return Now()


def together(clock, names):
    """Gates by the names of their gateways; an event reaches the others at once."""
    gates = {}

    def publisher(sender):
        def publish(event):
            for name in gates.keys() - {sender}:
                gates[name].used_elsewhere(sender, event)

        return publish

    for name in names:
        gates[name] = TenantGate(clock=clock, wall=lambda: 50.0, publish=publisher(name))
    return gates.values()


def read(*gates, **limits):
    """They read of a tenant with these limits."""
    for gate in gates:
        gate.take(TenantKeys(tenants=(grant("t", "k", **limits),)))


def admitted(clock, gate, name):
    """Whether a request of the tenant is."""
    (tenant,) = gate.keys.tenants
    return gate.enter(Caller(grant=tenant), name, tokens=1.0, until_s=clock.now + TIMEOUT_S)[1] is None


def test_so_many_run_at_once_at_all_gateways(clock):
    one, two, three = together(clock, "abc")
    read(one, two, three, concurrent_requests=2)
    came = [(one, "a"), (two, "b"), (three, "c"), (one, "d")]
    assert [admitted(clock, *each) for each in came] == [True, True, False, False]
    two.ended("b")
    assert [admitted(clock, *each) for each in ((three, "e"), (two, "f"))] == [True, False]
    one.gateway_left("c")
    assert [admitted(clock, *each) for each in ((one, "g"), (one, "h"))] == [True, False]


def test_what_began_without_a_limit_or_before_the_tenant_was_read_of_counts_as_well(clock):
    one, two = together(clock, "ab")
    read(one)
    assert [admitted(clock, one, name) for name in "abc"] == [True, True, True]
    assert list(one.standing()) == [TenantUse(tenant="default/t", running=3)]
    read(two, concurrent_requests=1)
    for name in "abc":
        assert not admitted(clock, two, f"{name}-2")
        one.ended(name)
    assert admitted(clock, two, "d")
    assert list(one.standing()) == [TenantUse(tenant="default/t")]


@pytest.mark.parametrize("knows", [True, False], ids=["knows the tenant", "reads of it later"])
def test_one_that_begins_to_follow_knows_what_is_used_and_runs_and_counts_it_once(clock, knows):
    one, two = together(clock, "ab")
    (three,) = together(clock, "c")
    limits = {"requests_per_minute": 4, "tokens_per_minute": 600, "concurrent_requests": 4}
    read(one, two, *[three] * knows, **limits)
    assert [admitted(clock, *each) for each in ((one, "a"), (two, "b"), (one, "c"))] == [True] * 3
    one.ended("c")
    for name, gate in (("a", one), ("b", two)):
        for use in gate.standing():
            three.used_elsewhere(name, use)
    read(three, **limits)
    (use,) = three.standing()
    assert use == TenantUse(tenant="default/t", minute_requests=3.0, minute_tokens=3.0)
    assert [admitted(clock, three, name) for name in "de"] == [True, False]
    clock.now += 15.0
    assert [admitted(clock, three, name) for name in "fg"] == [True, False]
    clock.now += 60.0
    assert not admitted(clock, three, "h"), "four run at the three"


def test_an_end_that_came_before_its_beginning_counts_elsewhere(clock):
    one, two = together(clock, "ab")
    read(one, two, concurrent_requests=1)
    one.ended("a")
    assert admitted(clock, one, "a")
    assert admitted(clock, two, "b")


def test_an_end_that_was_lost_is_known_elsewhere_though_nothing_comes_any_more(clock):
    one, two = together(clock, "ab")
    read(one, two, concurrent_requests=1)
    assert admitted(clock, one, "a")
    assert not admitted(clock, two, "b")
    clock.now += TIMEOUT_S
    read(one, concurrent_requests=1)
    assert admitted(clock, two, "c")


def test_what_runs_of_a_tenant_that_is_gone_ends_elsewhere_as_well(clock):
    one, two = together(clock, "ab")
    read(one, two, concurrent_requests=1)
    assert admitted(clock, one, "a")
    one.take(TenantKeys())
    one.ended("a")
    assert admitted(clock, two, "b")
