"""Requests for which there is neither room nor a place are counted, once, for the autoscaler."""

import pytest

from fakes.busy_picker import FULL, PATH, ROUTE, hold, made, pick, report, with_room
from fakes.clock import Now
from fakes.gateway import accepted, pod, service, table
from kvasir_api import names
from kvasir_gateway.picker.request_parser import ImmediateResponse


@pytest.fixture
def clock():
    return Now()


@pytest.fixture
def picker(clock):
    return made(clock)


def counts(picker, name="s"):
    (found,) = [found for found in picker.state().services if found.name == name]
    return {"shed": found.shed, "expired": found.expired, "abandoned": found.abandoned, "again": found.held_retried}


NONE = {"shed": 0, "expired": 0, "abandoned": 0, "again": 0}
AGAIN = {"x_stainless_retry_count": "1"}


def test_what_finds_neither_room_nor_a_place_is_counted_once_for_the_autoscaler(picker, clock):
    report(picker, clock, one=FULL, two=FULL)
    for number in range(6):
        hold(picker, str(number))
    assert isinstance(pick(picker, "seventh"), ImmediateResponse)
    assert isinstance(pick(picker, "seventh again", **AGAIN), ImmediateResponse)
    assert counts(picker) == NONE | {"shed": 1}
    hold(picker, "other", authorization="Bearer other")  # the newest of the first tenant gives way
    clock.now += 60.0
    assert {answer.status for _, answer in picker.release()} == {429}
    assert counts(picker) == NONE | {"shed": 1, "expired": 7}


def test_a_held_request_that_no_replica_of_its_service_gets_is_counted(picker, clock):
    report(picker, clock, one=FULL, two=FULL)
    left, routed = hold(picker, "left"), hold(picker, "routed", "default/r")
    picker.stop_waiting(left)
    picker.stop_waiting(left)
    assert counts(picker) == NONE | {"abandoned": 1}
    pods = [pod("s", "one", ip="10.0.0.1"), pod("asleep", "three", ip="10.0.0.3")]
    picker.table = table([service("s"), service("asleep")], pods, [ROUTE])
    picker.accepted_clusters = accepted(picker.table)
    [(name, going)] = picker.release()
    assert (name, going.cluster) == (routed.id, "default.asleep")
    picker.stop_waiting(routed)
    assert counts(picker) == NONE | {"abandoned": 2}
    assert counts(picker, "asleep") == NONE


def test_a_try_that_was_held_is_counted_here_and_no_other_time_by_its_replica(picker, clock):
    report(picker, clock, one=FULL, two=FULL)
    hold(picker, "again", **AGAIN)
    hold(picker, "first", x_stainless_retry_count="0")
    report(picker, clock, one=with_room(2), two=FULL)
    tries = {name: going.headers.get(names.HEADER_RETRY_COUNT) for name, going in picker.release()}
    assert tries == {"again": "0", "first": "0"}
    assert counts(picker) == NONE | {"again": 1}
    report(picker, clock, one=with_room(2), two=FULL)
    assert names.HEADER_RETRY_COUNT not in pick(picker, "at once", **AGAIN).headers
    assert counts(picker) == NONE | {"again": 1}


@pytest.mark.parametrize(("may_start", "shed"), [(True, 1), (False, 0)])
def test_what_a_start_would_have_served_is_demand_where_nothing_is_held_too(clock, may_start, shed):
    off = made(clock, max_wait_s=0)
    asleep = service("asleep")
    asleep["spec"] |= {} if may_start else {"replicas": 0}
    off.table = table([asleep], [])
    for found in (pick(off, "a", "asleep"), off.pick_now(b'{"model": "asleep"}', "b", PATH, {}, within=None)):
        assert found.status == 503
    assert counts(off, "asleep") == NONE | {"shed": 2 * shed}
