"""Shares of tenants: what is counted, and how far tenants that always wait can come apart."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.model import FakeModel
from fakes.runner import FakeRunner
from fakes.serving import request, serving
from kvasir_runtime.core.fair_shares import ANSWER_COST, KEPT_TENANTS, FairShares

NO_EOS = FakeModel(table=tuple(range(1, 61)))
ROWS = 4


def endless(**settings):
    return serving(runner=FakeRunner(model=NO_EOS), max_sequences=ROWS, prefix_cache=False, **settings)


def spent(served, tenant):
    served.scheduler._shares.settle(served.scheduler._running.values())
    return served.scheduler._shares.counter(tenant)


def test_a_prompt_counts_once_and_an_answer_twice_by_weight():
    served = endless()
    served.submit(request("a", [1] * 10, max_tokens=6, tenant="a"))
    served.submit(request("b", [2] * 10, max_tokens=6, tenant="b", weight=2.0))
    served.finish()
    assert spent(served, "a") == 10 + 2 * 6
    assert spent(served, "b") == 22 / 2


def test_cached_tokens_and_preemptions_are_free():
    served = serving(runner=FakeRunner(model=NO_EOS), num_blocks=9)
    served.submit(request("a", range(1, 8), max_tokens=20, tenant="a"))
    served.submit(request("b", range(2, 9), max_tokens=20, tenant="b"))
    served.submit(request("w", [9] * 28, max_tokens=1, tenant="w", priority=9))  # so that one always waits
    served.finish()
    assert served.scheduler._counters.preemptions == 1
    assert spent(served, "a") == spent(served, "b") == 7 + 40
    for tenant in ("warm", "c"):
        served.submit(request(tenant, range(1, 8), max_tokens=1, tenant=tenant))
        served.finish()
    assert spent(served, "c") == 7 - 4 + 2
    assert spent(served, "a") == 0, "while none waits, nothing is held against anyone"


def test_a_tenant_that_was_away_has_saved_up_nothing():
    shares, served = FairShares(), endless()
    for tenant in "abc":
        served.submit(request(tenant, [1] * 10, tenant=tenant))
    a, b, c = (served.scheduler._requests[tenant] for tenant in "abc")
    shares.admitted(a, 100)
    shares.admitted(b, 30)
    assert [shares.counter(tenant) for tenant in "abc"] == [100, 30, 0]
    shares.queued(c, "ab", ())
    assert [shares.counter(tenant) for tenant in "abc"] == [100, 30, 30], "b waits, and was served least"
    shares.queued(c, "a", ())
    assert [shares.counter(tenant) for tenant in "abc"] == [100, 100, 100], "a has waited alone"


def test_a_choice_that_was_not_for_the_least_served_forgives_nothing():
    shares, served = FairShares(), endless()
    served.submit(request("a", [1], tenant="a", priority=-1))
    urgent = served.scheduler._requests["a"]
    for _ in range(3):
        shares.queued(urgent, "b", ())
        shares.admitted(urgent, 100)
    assert (shares.counter("a"), shares.counter("b")) == (300, 0)


def test_what_was_served_while_none_waited_is_never_counted():
    served = endless()
    served.submit(request("a", [1], max_tokens=40, tenant="a"))
    for _ in range(20):
        served.step()
    for number in range(5):
        served.submit(request(f"b{number}", [1], max_tokens=4, tenant="b"))
    assert spent(served, "a") == 0
    served.step()
    assert spent(served, "a") == 2


def test_a_preemption_while_none_waits_is_no_charge_for_what_ran():
    served = serving(runner=FakeRunner(model=NO_EOS), num_blocks=9)
    for name, prompt in (("a", range(1, 8)), ("b", range(2, 9))):
        served.submit(request(name, prompt, max_tokens=20, tenant="t"))
    while not served.scheduler._counters.preemptions:
        served.step()
    assert spent(served, "t") <= 2


def test_what_runs_is_counted_before_a_tenant_comes():
    """Else what was served while it was away would be held against the others alone."""
    served = endless()
    for number in range(5):
        served.submit(request(f"a{number}", [1], max_tokens=40, tenant="a"))
    for _ in range(20):
        served.step()
    served.submit(request("b", [1], tenant="b"))
    assert spent(served, "b") == spent(served, "a") > 100


def test_counters_that_the_level_has_passed_are_dropped():
    shares, served = FairShares(), endless()
    for number in range(2 * KEPT_TENANTS):
        served.submit(request(str(number), [1], tenant=f"t{number}"))
        shares.admitted(served.scheduler._requests[str(number)], 1)
    for _ in range(9):
        shares.admitted(served.scheduler._requests["0"], 1)
    shares.queued(served.scheduler._requests["2"], ["t0", "t1"], ())
    assert shares._counters == {"t0": 10}
    assert shares.counter("t1") == shares.level == 1


def test_a_flood_does_not_delay_another_tenant():
    served = endless()
    for number in range(80):
        served.submit(request(f"f{number}", [1] * 8, tenant="flood"))
    for _ in range(12):
        served.step()
    served.submit(request("o", [2] * 8, tenant="other", max_tokens=1))
    steps = 0
    while not served.answers["o"].reason:
        served.step()
        steps += 1
    assert steps <= 9, "one answer of the flood at most"


REQUESTS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 8)), min_size=30, max_size=60)


@given(first=REQUESTS, second=REQUESTS, weight=st.sampled_from([1.0, 2.0, 5.0]))
@settings(max_examples=40, deadline=None)
def test_tenants_that_always_wait_come_no_further_apart_than_what_is_in_flight(first, second, weight):
    """The bound of Sheng et al.: twice the larger of a prompt and of what all running requests can cost."""
    served = endless()
    for tenant, traffic, its in (("a", first, 1.0), ("b", second, weight)):
        for number, (prompt, answer) in enumerate(traffic):
            made = request(f"{tenant}{number}", [1] * prompt, max_tokens=answer, tenant=tenant, weight=its)
            served.submit(made)
    bound = 2 * ROWS * (12 + ANSWER_COST * 8)
    while served.step():
        waiting = {flow.tenant for flow in served.scheduler._waiting._flows.values()}
        if waiting != {"a", "b"}:
            break
        assert abs(spent(served, "a") - spent(served, "b")) <= bound


def cost(served, tenant):
    """What was computed for a tenant whose prompts have one token, by the answers that it got."""
    answers = [answer for name, answer in served.answers.items() if name[0] == tenant and answer.tokens]
    return sum(1 + ANSWER_COST * len(answer.tokens) for answer in answers)


@pytest.mark.parametrize("every", [1, 2, 5])
@pytest.mark.parametrize("priority", [-3, -1])
def test_what_a_tenant_gets_by_priority_counts_against_it(every, priority):
    """Both always wait; one also sends small requests, which come first. They count, and forgive nothing."""
    served = endless()
    for number in range(300):
        for tenant in "ab":
            served.submit(request(f"{tenant}{number}", [1], max_tokens=4, tenant=tenant))
    bound = 2 * ROWS * (1 + ANSWER_COST * 4)
    for step in range(400):
        served.step()
        if step % every == 0:
            served.submit(request(f"a-{step}", [1], max_tokens=1, tenant="a", priority=priority))
        assert abs(cost(served, "a") - cost(served, "b")) <= bound
    assert {flow.tenant for flow in served.scheduler._waiting._flows.values() if not flow.priority} == {"a", "b"}
