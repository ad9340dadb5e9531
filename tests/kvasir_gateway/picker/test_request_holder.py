"""Requests that wait in the picker: they go when an endpoint is there, and every other end is a refusal."""

import asyncio
import json

import pytest

from fakes.clock import Now
from fakes.gateway import accepted, model_route, pod, service, table
from kvasir_api.state import RuntimeState
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.hold_queue import HeldRequest, HoldLimits
from kvasir_gateway.picker.destination import Destination
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_holder import RequestHolder
from kvasir_gateway.picker.request_parser import ImmediateResponse, RequestBounds
from kvasir_gateway.routing_table import StateReading

BODY = b'{"model": "s"}'
READY = "10.0.0.1:8000"


@pytest.fixture
def clock():
    return Now()


@pytest.fixture
def picker(clock):
    made = Picker(
        metrics=GatewayMetrics(),
        clock=clock,
        draw=lambda: 0,
        policy=ChoicePolicy(),
        bounds=RequestBounds(max_body_bytes=1000),
        limits=HoldLimits(max_requests=3, max_wait_s=60.0),
    )
    made.table = table([service("s")], [])
    return made


def start(picker):
    """A replica of the service is ready."""
    picker.table = table([service("s")], [pod("s", "one", ip="10.0.0.1")])
    picker.accepted_clusters = accepted(picker.table)


def hold(picker, name, **headers):
    outcome = picker.pick(BODY, name, "/v1/completions", headers)
    assert isinstance(outcome, HeldRequest)
    return outcome


def refusal(answer):
    assert isinstance(answer, ImmediateResponse)
    assert int(answer.headers["retry-after"]) >= 1
    return answer.status, json.loads(answer.body)["error"]["code"]


def demand(picker):
    found = picker.state().services[0]
    return found.held, found.inflight, found.refused, found.requests


def test_a_request_for_a_service_without_replicas_is_held_and_reported(picker):
    hold(picker, "a")
    assert demand(picker) == (1, 0, 0, 1)
    assert picker.state().services[0].held_bytes == len(BODY)
    assert picker.release() == []


def test_held_requests_go_when_a_replica_is_ready(picker):
    for name in ("a", "b"):
        hold(picker, name)
    start(picker)
    destination = Destination(cluster="default.s", addresses=(READY,), timeout_s=3600.0, service="default/s")
    assert picker.release() == [("a", destination), ("b", destination)]
    assert demand(picker) == (0, 2, 0, 2)


def test_none_goes_before_envoy_knows_the_replica(picker):
    hold(picker, "a")
    start(picker)
    picker.accepted_clusters = frozenset()
    assert picker.release() == []


def test_a_new_request_does_not_pass_those_that_wait(picker):
    hold(picker, "a")
    start(picker)
    hold(picker, "b")
    assert [name for name, _ in picker.release()] == ["a", "b"]
    assert isinstance(picker.pick(BODY, "c"), Destination)


def test_who_has_waited_for_too_long_is_refused(picker, clock):
    hold(picker, "a")
    clock.now += 30.0
    hold(picker, "b")
    clock.now += 30.0
    [(name, answer)] = picker.release()
    assert (name, refusal(answer)) == ("a", (503, "no_ready_replica"))
    assert "after 60 s" in json.loads(answer.body)["error"]["message"]
    assert demand(picker) == (1, 0, 1, 2)


def test_a_full_queue_refuses_at_once(picker):
    for name in ("a", "b", "c"):
        hold(picker, name)
    assert refusal(picker.pick(BODY, "d", "/v1/completions")) == (429, "overloaded")
    assert demand(picker) == (3, 0, 1, 4)


def test_another_tenant_still_finds_its_place_in_a_full_queue(picker):
    for name in ("a", "b", "c"):
        hold(picker, name, authorization="Bearer one")
    hold(picker, "d", authorization="Bearer two")
    [(name, answer)] = picker.release()
    assert (name, refusal(answer)) == ("c", (429, "overloaded"))
    start(picker)
    assert [name for name, _ in picker.release()] == ["a", "d", "b"]


def test_tenants_are_told_apart_by_the_services_header(picker):
    made = service("s")
    made["spec"]["runtime"] = {"tenantHeader": "X-Tenant"}
    picker.table = table([made], [])
    for name in ("a", "b"):
        hold(picker, name, **{"x-tenant": "one", "authorization": "Bearer k"})
    hold(picker, "c", **{"x-tenant": "two", "authorization": "Bearer k"})
    start(picker)
    assert [name for name, _ in picker.release()] == ["a", "c", "b"]


@pytest.mark.parametrize(
    ("spec", "status", "waits"),
    [
        ({}, {}, True),
        ({"replicas": 0}, {}, False),
        ({"replicas": 0, "autoscaling": {"minReplicas": 0}}, {"desiredReplicas": 0}, True),
        ({"replicas": 0, "autoscaling": {"mode": "External"}}, {}, True),
        ({"replicas": 0, "autoscaling": {"mode": "Advisory"}}, {}, False),
        ({"autoscaling": {"mode": "Paused"}}, {"desiredReplicas": 0}, False),
        ({"autoscaling": {"mode": "Paused"}}, {"desiredReplicas": 1}, True),
        ({}, {"conditions": [{"type": "Stalled", "status": "True"}]}, False),
        ({}, {"conditions": [{"type": "Ready", "status": "False"}]}, True),
    ],
)
def test_only_a_service_that_may_start_is_waited_for(picker, spec, status, waits):
    made = service("s")
    made["spec"] |= spec
    picker.table = table([made | {"status": status}], [])
    outcome = picker.pick(BODY, "a", "/v1/completions")
    assert isinstance(outcome, HeldRequest) is waits
    if not waits:
        assert refusal(outcome) == (503, "no_ready_replica")


def test_a_service_that_stalls_or_goes_is_waited_for_no_longer(picker):
    hold(picker, "a")
    picker.table = table([service("s") | {"status": {"conditions": [{"type": "Stalled", "status": "True"}]}}], [])
    [(_, answer)] = picker.release()
    assert refusal(answer) == (503, "no_ready_replica")
    picker.table = table([service("s")], [])
    hold(picker, "b")
    picker.table = table([], [])
    [(_, answer)] = picker.release()
    assert answer.status == 404


def test_what_is_at_draining_replicas_is_held_until_another_is_there(picker):
    start(picker)
    picker.readings = {READY: StateReading(state=RuntimeState(phase="draining"), at_s=100.0)}
    hold(picker, "a")
    picker.readings = {READY: StateReading(state=RuntimeState(phase="ready"), at_s=100.0)}
    assert [name for name, _ in picker.release()] == ["a"]


@pytest.fixture
async def holder(picker):
    made = RequestHolder(picker)
    running = asyncio.create_task(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_waits_end_with_the_pickers_word(picker, holder):
    with holder.waiting(hold(picker, "a")) as first, holder.waiting(hold(picker, "b")) as second:
        start(picker)
        async with asyncio.timeout(60):
            assert (await first).addresses == (await second).addresses == (READY,)
    assert demand(picker) == (0, 2, 0, 2)


async def test_a_client_that_leaves_gives_its_place_up(picker, holder):
    async def wait(name):
        with holder.waiting(hold(picker, name)) as outcome:
            await outcome

    tasks = [asyncio.create_task(wait(name)) for name in ("a", "b", "c")]
    await asyncio.sleep(0)
    assert demand(picker) == (3, 0, 0, 3)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert demand(picker) == (0, 0, 0, 3)
    start(picker)
    assert picker.release() == []


def routed(*ready):
    """A service that stands for itself, and one with a route whose fallback is another one."""
    route = model_route("r", rules=[{"targets": [{"service": "s"}]}], fallbacks=[{"service": "spare"}])
    pods = [pod(name, "one", ip="10.0.0.1") for name in ready]
    return table([service("s"), service("spare")], pods, [route])


def test_a_request_that_waits_for_itself_stops_none_that_has_a_fallback(picker):
    picker.table = routed()
    for name, model in (("direct", "s"), ("first", "default/r"), ("second", "default/r")):
        assert isinstance(picker.pick(json.dumps({"model": model}).encode(), name, "/v1/completions", {}), HeldRequest)
    assert picker.release() == []
    picker.table = routed("spare")
    picker.accepted_clusters = accepted(picker.table)
    found = picker.release()
    assert [(name, went.cluster, went.fallback) for name, went in found] == [
        ("first", "default.spare", "AtZero"),
        ("second", "default.spare", "AtZero"),
    ]
    picker.table = routed("s")
    picker.accepted_clusters = accepted(picker.table)
    assert [(name, went.cluster) for name, went in picker.release()] == [("direct", "default.s")]
