"""Open sequences are counted by tenant, whichever way they end."""

from hypothesis import given
from hypothesis import strategies as st

from fakes.serving import request
from kvasir_runtime.client.open_sequences import OpenSequences, TenantLoad, TenantLoads

NAMES = st.sampled_from([f"r{number}" for number in range(6)])
CALLS = st.lists(st.tuples(st.booleans(), NAMES, st.sampled_from("ab"), st.sampled_from([1.0, 2.0])), max_size=40)


@given(CALLS)
def test_each_tenant_counts_what_it_has_open(calls):
    found, held = OpenSequences(), {}
    weights = {}
    for begins, name, tenant, weight in calls:
        if begins:
            found.add(request(name, [1], tenant=tenant, weight=weight), None, 7)
            held[name], weights[tenant] = tenant, weight
        else:
            ended = found.end(name)
            assert (ended.tenant if ended else None) == held.pop(name, None)
        counts = {tenant: list(held.values()).count(tenant) for tenant in held.values()}
        assert found.tenants == {tenant: TenantLoad(count, weights[tenant]) for tenant, count in counts.items()}
        assert found.keys() == held.keys()
    assert {name: one.tenant for name, one in found.end_all().items()} == held
    assert not found
    assert not found.tenants


def test_loads_of_two_kinds_are_added():
    loads = TenantLoads()
    for tenant in ("a", "a", "b"):
        loads.add(tenant, 2.0)
    others = {"b": TenantLoad(3, 2.0), "c": TenantLoad(1, 1.0)}
    assert loads.num_open == 3
    assert loads.beside(others) == {"a": TenantLoad(2, 2.0), "b": TenantLoad(4, 2.0), "c": TenantLoad(1, 1.0)}
    assert others["b"].num_open == 3, "they stay as they are"
