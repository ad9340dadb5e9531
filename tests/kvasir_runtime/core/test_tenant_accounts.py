"""The integral of what tenants pin is exact: no block is counted twice, none is left out, whatever ends them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.tenant_accounts import REPORT_S, TenantAccounts

NO_EOS = FakeModel(table=tuple(range(1, 61)))
LIMITS = Limits(num_blocks=8, block_size=4, max_batch_tokens=8, max_sequences=2, max_model_len=32)


def endless(**settings):
    return serving(runner=FakeRunner(model=NO_EOS), **settings)


def test_pinned_tokens_are_counted_for_as_long_as_they_are_pinned():
    pool = BlockPool(8)
    accounts = TenantAccounts(LIMITS, pool)
    accounts.advance(100.0)
    first = pool.take(3, "a")
    accounts.advance(102.0)
    pool.take(1, "b")
    pool.share(first[:2], payer="b")
    accounts.advance(102.5)
    pool.release(first)
    usage = accounts.taken(104.5)
    assert usage is not None
    # Two blocks of the first tenant stay pinned by the second one, and count for the first.
    assert {tenant: used.kv_token_seconds for tenant, used in usage.items()} == {"a": 46.0, "b": 10.0}


def test_a_block_that_comes_back_counts_for_who_found_it():
    pool = BlockPool(8)
    accounts = TenantAccounts(LIMITS, pool)
    blocks = pool.take(1, "a")
    pool.publish(blocks[0], b"x")
    pool.release(blocks)
    accounts.advance(5.0)
    pool.share(blocks, payer="b")
    usage = accounts.taken(6.0)
    assert usage is not None
    assert {tenant: used.kv_token_seconds for tenant, used in usage.items()} == {"b": 4.0}


def test_usage_is_given_once_a_second_and_once():
    pool = BlockPool(8)
    accounts = TenantAccounts(LIMITS, pool)
    assert accounts.taken(50.0) is None
    accounts.generated("a", 3)
    assert accounts.taken(50.0) is not None
    accounts.generated("a", 2)
    accounts.admitted("a", 7, 4)
    assert accounts.taken(50.0 + REPORT_S / 2) is None
    usage = accounts.taken(50.0 + REPORT_S)
    assert usage is not None
    assert (usage["a"].generation_tokens, usage["a"].prompt_tokens, usage["a"].cached_tokens) == (2, 7, 4)
    assert accounts.taken(60.0) is None


@pytest.mark.parametrize("depth", [1, 2])
@given(
    arrivals=st.lists(
        st.tuples(st.sampled_from("abc"), st.integers(1, 24), st.integers(1, 12), st.booleans()), max_size=10
    ),
    num_blocks=st.integers(10, 24),
)
def test_tenants_together_are_charged_for_all_that_is_pinned(depth, arrivals, num_blocks):
    """A step takes a second, and pins change at its beginning, so that what is pinned after it was so for a second."""
    served = endless(depth=depth, num_blocks=num_blocks, max_sequences=4)
    pinned, scheduler = 0, served.scheduler
    for number, (tenant, length, answer, aborts) in enumerate(arrivals):
        prompt = [ord(tenant) % 8 + position % 5 for position in range(length)]
        served.submit(request(str(number), prompt, max_tokens=answer, tenant=tenant, salt=tenant.encode() * 32))
        served.step()
        if aborts:
            scheduler.abort(str(number), served.now)
        pinned += scheduler.pool.num_pinned
    while served.step():
        pinned += scheduler.pool.num_pinned
    usage = scheduler.tenants.taken(served.now) or {}
    assert sum(used.kv_token_seconds for used in usage.values()) == 4 * pinned
    assert scheduler.pool.pinned_by == {}
    totals = scheduler.report(RuntimeState()).totals
    for field, want in (
        ("generation_tokens", totals.generation_tokens),
        ("prompt_tokens", totals.prefix_query_tokens),
        ("cached_tokens", totals.prefix_hit_tokens),
    ):
        assert sum(getattr(used, field) for used in usage.values()) == want
