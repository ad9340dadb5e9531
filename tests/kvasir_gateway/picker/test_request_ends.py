"""How requests end: with the Envoy that had them, by a log that was lost, and at other proxies with their streams."""

import json

import pytest

from fakes.clock import Now
from fakes.gateway import NO_HOLD, accepted, grant, pod, service, table
from kvasir_api import http_apis, names
from kvasir_api.state import RuntimeState
from kvasir_api.tenant_keys import TenantKeys
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.envoy.routes import RELAY
from kvasir_gateway.picker.destination import Destination
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_parser import ImmediateResponse, RequestBounds
from kvasir_gateway.routing_table import StateReading

BODY = b'{"model": "m", "prompt": "x"}'
CHATS = http_apis.CHATS
INSTANCE = http_apis.new_instance("default/s")
HELD = f"/v1/responses/resp_{INSTANCE}{'1' * 24}"


@pytest.fixture
def clock():
    return Now()


@pytest.fixture
def metrics():
    return GatewayMetrics()


@pytest.fixture
def picker(clock, metrics):
    made = Picker(
        metrics=metrics,
        clock=clock,
        draw=lambda: 0,
        policy=ChoicePolicy(),
        bounds=RequestBounds(),
        limits=NO_HOLD,
    )
    made.table = table([service("s", model="m"), service("empty")], [pod("s", "one", ip="10.0.0.1")])
    made.accepted_clusters = accepted(made.table)
    state = RuntimeState(phase="ready", instance=INSTANCE)
    made.readings = {"10.0.0.1:8000": StateReading(state=state, at_s=100.0)}
    return made


def where(answer):
    assert isinstance(answer, Destination)
    return answer.cluster, answer.addresses


def test_requests_of_an_envoy_that_is_gone_are_over(picker, clock, metrics):
    picker.pick(BODY, "old")
    clock.now = 107.0
    picker.pick(BODY, "new")
    assert picker.ends.envoy_restarted(before_s=106.0) == 1
    assert picker.state().services[1].inflight == 1
    page = metrics.render(picker.table, picker.inflight, picker.held).decode()
    assert 'kvasir_gateway_requests_total{namespace="default",outcome="server_error",service="s"} 1.0' in page


def test_streams_that_an_earlier_picker_began_are_in_the_state(picker):
    picker.pick(BODY, "t")
    assert picker.ends.observe_active({"default.s": 3}, picker.table) == 0
    assert picker.state().services[1].inflight == 3
    picker.ends.observe_active({"default.s": 1}, picker.table)
    assert picker.state().services[1].inflight == 1


def test_requests_whose_ends_are_lost_end_all_the_same(picker, clock, metrics):
    for name in ("old", "older"):
        picker.pick(BODY, name)
    clock.now += 60.0
    picker.pick(BODY, "new")
    assert [picker.ends.observe_active({"default.s": 1}, picker.table) for _ in range(10)] == [0] * 9 + [1]
    assert picker.state().services[1].inflight == 2
    page = metrics.render(picker.table, picker.inflight, picker.held).decode()
    assert 'kvasir_gateway_requests_total{namespace="default",outcome="server_error",service="s"} 1.0' in page


def test_requests_of_other_proxies_are_not_missed_in_envoy(picker, clock):
    where(picker.pick_now(BODY, "theirs", "/v1/chat/completions", {}, within=None))
    clock.now += 11
    assert [picker.ends.observe_active({}, picker.table) for _ in range(12)] == [0] * 12
    assert picker.inflight.total() == 1
    picker.request_ended("theirs", status=200, client_left=False)
    assert picker.inflight.total() == 0


@pytest.mark.parametrize("target", [CHATS, HELD], ids=["chosen", "held by a pod"])
def test_requests_of_other_proxies_outlive_our_envoy(picker, clock, target):
    where(picker.pick_now(BODY, "theirs", target, {}, within=None))
    where(picker.pick(BODY, "ours"))
    clock.now += 10
    assert picker.ends.envoy_restarted(before_s=clock.now) == 1
    assert picker.inflight.total() == 1
    picker.request_ended("theirs", status=200, client_left=False)
    assert picker.inflight.total() == 0


@pytest.mark.parametrize("target", [CHATS, HELD], ids=["chosen", "held by a pod"])
def test_an_end_that_was_lost_is_of_a_request_of_ours(picker, clock, target):
    where(picker.pick_now(BODY, "theirs", target, {}, within=None))
    where(picker.pick(BODY, "ours"))
    clock.now += 60
    assert [picker.ends.observe_active({}, picker.table) for _ in range(10)] == [0] * 9 + [1]
    assert picker.inflight.remove("ours") is None
    assert picker.inflight.remove("theirs") is not None


def test_what_runs_of_a_tenant_at_other_proxies_outlives_our_envoy(picker, clock):
    lines = []
    picker.tenants.audit.write = lines.append
    picker.tenants.take(TenantKeys(tenants=(grant("t", "k", concurrent_requests=1),)))
    key = {"authorization": "Bearer k"}
    where(picker.pick_now(BODY, "theirs", CHATS, key, within=None))
    clock.now += 10
    picker.ends.envoy_restarted(before_s=clock.now)
    assert lines == []
    refused = picker.pick_now(BODY, "more", CHATS, key, within=None)
    assert isinstance(refused, ImmediateResponse)
    assert (refused.status, json.loads(refused.body)["error"]["code"]) == (429, "rate_limit_exceeded")
    picker.request_ended("theirs", status=200, client_left=False)
    where(picker.pick_now(BODY, "more", CHATS, key, within=None))


@pytest.mark.parametrize(
    ("sent_on", "status", "tries", "shed"),
    [
        (False, 429, "0", 1),
        (False, 429, "1", 0),  # its client has sent it before, so that it was counted
        (True, 429, "0", 0),  # a replica, or the queue, has counted it
        (False, 413, "0", 0),  # no number of replicas would take it
        (False, 503, "0", 0),
        (False, 0, "0", 0),
    ],
)
def test_what_the_relay_refuses_for_want_of_memory_is_demand_once(picker, sent_on, status, tries, shed):
    picker.places()  # the relay listens
    resumed = json.dumps({"model": "m", "messages": [], "stream": True}).encode()
    headers = {names.HEADER_RESUME: "1", names.HEADER_RETRY_COUNT: tries}
    outcome = picker.pick(resumed, "outer", CHATS, headers)
    assert where(outcome) == (RELAY, ())
    if sent_on:
        picker.pick(resumed, "inner", CHATS, {**headers, names.HEADER_RELAYED: "outer"})
    for _ in range(2):  # a log may come twice
        picker.request_ended("outer", status=status, client_left=False)
    assert demand(picker, "s").shed == shed


def demand(picker, name):
    return next(service for service in picker.state().services if service.name == name)
