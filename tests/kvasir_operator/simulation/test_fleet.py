"""Pods that start, serve, drain and vanish under a rule."""

from dataclasses import replace

from kvasir_operator.simulation.fleet import Fleet
from kvasir_operator.simulation.hold_model import HoldProfile
from kvasir_operator.simulation.pod_model import PodProfile
from kvasir_operator.simulation.traffic import SimulatedRequest

PROFILE = PodProfile(kv_tokens=10_000, slots=4, prefill_tokens_per_s=1_000.0, cold_start_s=10.0)


class Script:
    """Numbers by time."""

    name, period_s = "script", 1.0

    def __init__(self, *steps):
        self.steps, self.views = steps, []

    def wanted(self, view):
        self.views.append(view)
        return [count for at, count in self.steps if at <= view.now][-1]


def coming(count, *, every=1.0, output=100):
    return [SimulatedRequest(number=n, at=every * n, prompt=100, output=output) for n in range(count)]


def test_a_new_pod_takes_requests_after_its_start():
    rule = Script((0, 1), (5, 2))
    Fleet(PROFILE, rule, replicas=1, most=4).run(coming(5), seconds=30)
    starting = [view.now for view in rule.views if view.starting]
    assert (min(starting), max(starting)) == (6.5, 14.5)
    assert rule.views[-1].ready == 2


def test_no_request_is_lost_when_pods_leave():
    rule = Script((0, 3), (10, 1))
    done = Fleet(PROFILE, rule, replicas=3, most=4).run(coming(60, every=0.5), seconds=200)
    assert len(done.requests) == 60
    assert all(a.ended_at > 0 for a in done.requests)
    assert done.targets == [(0.0, 3), (10.5, 1)]


def test_a_pod_that_has_not_started_leaves_at_once():
    rule = Script((0, 1), (5, 3), (8, 1))
    done = Fleet(PROFILE, rule, replicas=1, most=4).run([], seconds=30)
    assert done.pod_s == 30 + 2 * 3


def test_requests_are_held_while_there_is_no_pod():
    rule = Script((0, 0), (5, 1))
    done = Fleet(PROFILE, rule, replicas=0, most=4).run(coming(2), seconds=40)
    assert max(view.held for view in rule.views) == 2
    assert all(15 < a.first_at < 18 for a in done.requests)


def test_requests_are_held_while_pods_are_busy_up_to_the_bounds_of_a_gateway():
    short, rule = replace(PROFILE, max_waiting=1), Script((0, 1))
    hold = HoldProfile(max_requests=3, max_wait_s=4.0)
    done = Fleet(short, rule, replicas=1, most=1, hold=hold).run(coming(12, every=0.01, output=3000), seconds=40)
    assert [(view.gateway.held, view.gateway.shed) for view in rule.views[:2]] == [(3, 4), (3, 4)]
    last = rule.views[-1].gateway
    assert (last.held, last.shed, last.expired, last.held_retried) == (0, 4, 15, 12)
    assert sum(a.first_at > 0 for a in done.requests) == 4


def test_the_delay_from_a_saturated_fleet_to_a_pod_is_measured():
    rule = Script((0, 1), (30, 2))
    done = Fleet(PROFILE, rule, replicas=1, most=4).run(coming(200, every=0.2, output=400), seconds=60)
    (delay,) = done.delays_s
    assert 20 < delay < 30


def test_a_refused_request_is_sent_again_twice():
    short = replace(PROFILE, max_waiting=1)
    done = Fleet(short, Script((0, 1)), replicas=1, most=1).run(coming(12, every=0.01, output=1), seconds=60)
    tries = [a.tries for a in done.requests]
    assert (max(tries), tries.count(0)) == (2, 5)
    assert all((a.ended_at > 0) or a.tries == 2 for a in done.requests)
