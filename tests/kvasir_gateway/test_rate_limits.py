"""Limits of tenants: what a minute allows, what headers say, and what runs at once."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fakes.gateway import grant
from kvasir_gateway.rate_limits import MOST_ELSEWHERE, RateLimits, duration


def limited(**limits):
    return grant("t", "k", **limits)


def enter(limits, tenant, name, *, tokens=0.0, now_s=0.0):
    return limits.enter(tenant, name, tokens=tokens, now_s=now_s)


def codes(decisions):
    return [decision.refusal.code if decision.refusal else "ok" for decision in decisions]


def test_a_tenant_without_limits_has_no_headers():
    decision = enter(RateLimits(), limited(), "a", tokens=1e9)
    assert (decision.headers, decision.refusal) == ({}, None)


def test_a_minutes_requests_may_come_at_once_and_then_evenly():
    limits, tenant = RateLimits(), limited(requests_per_minute=3)
    found = [enter(limits, tenant, str(i)) for i in range(4)]
    assert codes(found) == ["ok", "ok", "ok", "rate_limit_exceeded"]
    assert found[-1].refusal.retry_after_s == 20.0
    assert found[-1].refusal.status == 429
    assert codes([enter(limits, tenant, "late", now_s=19.9), enter(limits, tenant, "next", now_s=20.0)]) == [
        "rate_limit_exceeded",
        "ok",
    ]


def test_headers_tell_what_is_left():
    limits, tenant = RateLimits(), limited(requests_per_minute=60, tokens_per_minute=6000)
    decision = enter(limits, tenant, "a", tokens=100.5)
    assert decision.headers == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": "5899",
        "x-ratelimit-reset-tokens": "1.1s",
    }


def test_a_refusal_names_the_limit_that_lasts_longest_and_takes_nothing():
    limits, tenant = RateLimits(), limited(requests_per_minute=60, tokens_per_minute=600)
    enter(limits, tenant, "a", tokens=600)
    decision = enter(limits, tenant, "b", tokens=300)
    assert "600 tokens per minute" in decision.refusal.message
    assert decision.refusal.retry_after_s == 30.0
    assert decision.headers["x-ratelimit-remaining-requests"] == "59"


def test_a_prompt_that_is_longer_than_a_minute_allows_takes_a_whole_one():
    limits, tenant = RateLimits(), limited(tokens_per_minute=600)
    assert enter(limits, tenant, "a", tokens=6000).refusal is None
    decision = enter(limits, tenant, "b", tokens=1)
    assert decision.refusal.retry_after_s == pytest.approx(540.1)


def test_what_takes_nothing_of_an_engine_is_bounded_by_the_rate_of_requests_alone():
    limits, tenant = RateLimits(), limited(requests_per_minute=3, tokens_per_minute=600, concurrent_requests=1)
    assert enter(limits, tenant, "a", tokens=600).refusal is None
    limits.use(tenant, tokens=6000.0, now_s=0.0)
    assert codes(limits.count(tenant, now_s=0.0) for _ in range(3)) == ["ok", "ok", "rate_limit_exceeded"]
    assert limits.running("default/t") == 1
    assert limits.count(limited(), now_s=0.0).refusal is None


def test_what_the_replica_counted_is_settled():
    limits, tenant = RateLimits(), limited(tokens_per_minute=600)
    enter(limits, tenant, "a", tokens=100)
    limits.use(tenant, tokens=800.0, now_s=0.0)
    assert enter(limits, tenant, "b", tokens=10).refusal.retry_after_s == 31.0
    limits.use(tenant, tokens=-900.0, now_s=0.0)
    assert enter(limits, tenant, "c", tokens=10).headers["x-ratelimit-remaining-tokens"] == "590"


def test_what_another_gateway_knows_to_be_used_counts_once():
    limits, tenant = RateLimits(), limited(requests_per_minute=60, tokens_per_minute=600)
    enter(limits, tenant, "a", tokens=100)
    for _ in range(2):
        limits.used_at_least(tenant, requests=10, tokens=50, now_s=0.0)
        assert limits.used(tenant, now_s=0.0) == {"requests": 10.0, "tokens": 100.0}
    assert limits.used(tenant, now_s=6.0) == {"requests": 4.0, "tokens": 40.0}
    assert limits.used(grant("other", "o", requests_per_minute=1), now_s=6.0) == {}
    limits.used_at_least(limited(), requests=10, tokens=50, now_s=6.0)
    assert limits.used(limited(), now_s=6.0) == {}


def test_so_many_run_at_once():
    limits, tenant = RateLimits(), limited(concurrent_requests=2)
    assert codes([enter(limits, tenant, name) for name in "abc"]) == ["ok", "ok", "rate_limit_exceeded"]
    limits.ended(tenant.id, "a")
    limits.ended(tenant.id, "a")
    limits.ended("default/other", "b")
    assert codes([enter(limits, tenant, name) for name in "cd"]) == ["ok", "rate_limit_exceeded"]
    assert limits.running(tenant.id) == 2


def test_so_many_run_at_once_at_all_gateways():
    limits, tenant = RateLimits(), limited(concurrent_requests=4)
    for gateway, running in (("one", 3), ("one", 1), ("two", 2), ("three", 0)):
        limits.run_elsewhere(gateway, tenant.id, running)
    limits.run_elsewhere("one", "default/other", 9)
    assert codes([enter(limits, tenant, name) for name in "ab"]) == ["ok", "rate_limit_exceeded"]
    limits.run_elsewhere("two", tenant.id, 1)
    assert codes([enter(limits, tenant, name) for name in "cd"]) == ["ok", "rate_limit_exceeded"]
    limits.gateway_left("one")
    assert codes([enter(limits, tenant, name) for name in "ef"]) == ["ok", "rate_limit_exceeded"]
    assert (limits.running(tenant.id), limits.tenants()) == (3, (tenant.id,))


def test_tenants_at_another_gateway_are_bounded():
    limits = RateLimits()
    for number in range(MOST_ELSEWHERE + 1):
        limits.run_elsewhere("one", f"t{number}", 1)
    limits.run_elsewhere("one", "t0", 2)
    found = [limits.running_elsewhere(f"t{number}") for number in (0, MOST_ELSEWHERE - 1, MOST_ELSEWHERE)]
    assert found == [2, 1, 0]


def test_what_does_not_run_takes_nothing_of_the_rate():
    limits, tenant = RateLimits(), limited(concurrent_requests=1, requests_per_minute=60)
    enter(limits, tenant, "a")
    assert enter(limits, tenant, "b").headers["x-ratelimit-remaining-requests"] == "59"


def test_a_limit_that_changes_keeps_what_was_used():
    limits = RateLimits()
    for name in "ab":
        enter(limits, limited(requests_per_minute=10), name)
    assert enter(limits, limited(requests_per_minute=100), "c").headers["x-ratelimit-remaining-requests"] == "97"
    assert enter(limits, limited(), "d").headers == {}


def test_tenants_that_are_gone_are_forgotten_when_nothing_of_them_runs():
    limits, tenant = RateLimits(), limited(requests_per_minute=1)
    enter(limits, tenant, "a")
    limits.keep(frozenset())
    assert limits.running(tenant.id) == 1
    limits.ended(tenant.id, "a")
    limits.keep(frozenset())
    assert enter(limits, tenant, "b").refusal is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0004, "1ms"), (0.12, "120ms"), (1, "1s"), (1.04, "1.1s"), (59.99, "1m0s"), (360, "6m0s")],
)
def test_durations_are_written_as_clients_read_them(seconds, text):
    assert duration(seconds) == text


class Minute(RuleBasedStateMachine):
    """Whatever comes: no minute admits more than two minutes' worth, and never do more run than may."""

    def __init__(self):
        super().__init__()
        self.limits, self.tenant = RateLimits(), limited(requests_per_minute=5, concurrent_requests=4)
        self.now, self.count = 0.0, 0
        self.admitted: list[float] = []
        self.running: set[str] = set()

    @rule(passed=st.sampled_from([0.0, 0.5, 3.0, 12.0, 70.0]))
    def request(self, passed):
        self.now += passed
        self.count += 1
        name = str(self.count)
        decision = self.limits.enter(self.tenant, name, tokens=10, now_s=self.now)
        if decision.refusal is None:
            self.admitted.append(self.now)
            self.running.add(name)
        else:
            assert decision.refusal.retry_after_s >= 1
        assert 0 <= int(decision.headers["x-ratelimit-remaining-requests"]) <= 5

    @rule()
    def end(self):
        if self.running:
            self.limits.ended(self.tenant.id, self.running.pop())

    @invariant()
    def holds(self):
        assert self.limits.running(self.tenant.id) == len(self.running) <= 4

    def teardown(self):
        for start in self.admitted:
            assert sum(start <= at <= start + 60 for at in self.admitted) <= 10


TestMinute = Minute.TestCase
