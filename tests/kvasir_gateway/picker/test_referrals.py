"""Requests that a replica refuses although it had room by its last report come back, and are decided again."""

import json

import pytest

from fakes.busy_picker import FULL, ONE, PATH, ROUTE, TWO, made, pick, report, with_room
from fakes.clock import Now
from fakes.gateway import accepted, model_route, pod, service, table
from kvasir_api import names
from kvasir_gateway.envoy.routes import MOST_REFERRALS, RELAY
from kvasir_gateway.hold_queue import HeldRequest
from kvasir_gateway.picker import ext_proc_messages, referrals
from kvasir_gateway.picker.destination import Destination, RoutableRequest
from kvasir_gateway.picker.held_requests import ASIDE_S
from kvasir_gateway.picker.referrals import MOST_OFFERS, Referrals
from kvasir_gateway.picker.request_parser import ImmediateResponse, ParsedBody
from kvasir_gateway.picker.request_prefix import RequestPrefix

HEAD = {":scheme": "http", ":authority": "gateway:8080", ":path": PATH}
URL = f"http://gateway:8080{PATH}"
BACK = {**HEAD, names.HEADER_ORIGINAL_URL: URL}


@pytest.fixture
def clock():
    return Now()


@pytest.fixture
def picker(clock):
    made_picker = made(clock)
    report(made_picker, clock, one=with_room(2), two=with_room(2))
    return made_picker


def refused_by_all(picker, name):
    """A request that both replicas have sent back."""
    pick(picker, name, **HEAD)
    assert isinstance(pick(picker, name, **BACK), Destination)
    return pick(picker, name, **BACK)


def stands(picker):
    found = next(service for service in picker.state().services if service.name == "s")
    return found.requests, found.inflight, found.held


def test_a_request_comes_back_to_another_replica_and_counts_once(picker):
    first = pick(picker, "a", **HEAD)
    assert first.headers[names.HEADER_REFER] == URL
    assert names.HEADER_RETRY_COUNT not in first.headers
    second = pick(picker, "a", **BACK)
    assert {first.addresses[0], second.addresses[0]} == {ONE, TWO}
    assert first.addresses[0] not in second.addresses
    assert second.headers[names.HEADER_RETRY_COUNT] == "1", "it is no further request of the service"
    assert stands(picker) == (1, 1, 0)
    picker.request_ended("a", status=200, client_left=False)
    assert stands(picker) == (1, 0, 0)


def test_one_that_all_refuse_waits_for_their_next_report_and_keeps_no_other_back(picker, clock):
    assert isinstance(refused_by_all(picker, "a"), HeldRequest)
    assert picker.release() == []
    assert isinstance(pick(picker, "b", **HEAD), Destination), "who comes later passes it"
    clock.now += ASIDE_S
    ((name, outcome),) = picker.release()
    assert (name, isinstance(outcome, Destination)) == ("a", True)
    assert picker.release() == []


def routed(picker, *routes):
    """A request for the route `r` that went to the first of two replicas, by the name that these know."""
    pods = [pod("s", "one", ip="10.0.0.1"), pod("s", "two", ip="10.0.0.2"), pod("asleep", "three", ip="10.0.0.3")]
    picker.table = table([service("s"), service("asleep")], pods, [ROUTE, *routes])
    picker.accepted_clusters = accepted(picker.table)
    first = pick(picker, "a", "default/r", **HEAD)
    assert (first.cluster, json.loads(first.body)["model"]) == ("default.s", "default/s")
    return first


def test_one_that_all_replicas_of_its_target_refuse_goes_to_the_fallback_of_its_route(picker):
    routed(picker)
    assert pick(picker, "a", "default/s", **BACK).cluster == "default.s"
    last = pick(picker, "a", "default/s", **BACK)
    assert (last.cluster, last.fallback, json.loads(last.body)["model"]) == (
        "default.asleep",
        "Saturated",
        "default/asleep",
    )
    picker.request_ended("a", status=200, client_left=False)
    assert stands(picker) == (1, 0, 0)


def test_the_name_that_a_replica_got_is_no_route_of_its_client(picker):
    routed(picker, model_route("of-s", modelName="s", rules=[{"targets": [{"service": "asleep"}]}]))
    second = pick(picker, "a", "default/s", **BACK)
    assert (second.cluster, second.fallback) == ("default.s", None)


def test_the_relay_gets_one_that_comes_back_as_its_client_sent_it(picker, clock):
    report(picker, clock, one=with_room(1), two=FULL)
    picker.table = table([service("s")], [pod("s", "one", ip="10.0.0.1"), pod("s", "two", ip="10.0.0.2")], [ROUTE])
    picker.places()
    sent, got = ({"model": model, "prompt": "", "stream": True} for model in ("default/r", "default/s"))
    first = picker.pick(json.dumps(sent).encode(), "a", PATH, HEAD)
    assert json.loads(first.body) == got
    back = picker.pick(first.body, "a", PATH, BACK)
    assert (back.cluster, json.loads(back.body)) == (RELAY, sent)
    assert back.headers[names.HEADER_RETRY_COUNT] == "1", "the replica has counted it"


def test_one_that_comes_back_to_replicas_that_are_full_by_now_joins_the_queue(picker, clock):
    assert isinstance(refused_by_all(picker, "a"), HeldRequest)
    clock.now += ASIDE_S
    report(picker, clock, one=FULL, two=FULL)
    assert picker.release() == []
    assert stands(picker) == (1, 0, 1)
    report(picker, clock, one=with_room(1), two=FULL)
    assert [name for name, _ in picker.release()] == ["a"]


def test_one_that_waits_in_the_queue_after_a_refusal_counts_there_alone(picker, clock):
    report(picker, clock, one=with_room(1), two=FULL)
    assert pick(picker, "a", **HEAD).addresses[0] == ONE
    assert isinstance(pick(picker, "a", **BACK), HeldRequest)
    report(picker, clock, one=FULL, two=FULL)
    clock.now += ASIDE_S
    assert picker.release() == []
    assert picker.inflight.counts("default.s").held_retried == 1
    report(picker, clock, one=with_room(1), two=FULL)
    ((_, outcome),) = picker.release()
    assert outcome.headers[names.HEADER_RETRY_COUNT] == "0", "its replica would take it off once more"


def test_a_client_that_leaves_waits_no_longer(picker, clock):
    picker.stop_waiting(refused_by_all(picker, "a"))
    picker.request_ended("a", status=0, client_left=True)
    clock.now += ASIDE_S
    assert picker.release() == []
    assert stands(picker) == (1, 0, 0)


def test_no_more_are_set_aside_than_may_be_held(clock):
    picker = made(clock, max_requests=2)
    report(picker, clock, one=with_room(2), two=with_room(2))
    outcomes = [refused_by_all(picker, name) for name in ("a", "b", "c")]
    assert [isinstance(outcome, HeldRequest) for outcome in outcomes] == [True, True, False]
    assert outcomes[2].status == 429


def test_one_that_comes_back_again_and_again_gets_the_refusal_at_last(picker, clock):
    headers = HEAD
    for _ in range(MOST_REFERRALS):
        outcome = pick(picker, "a", **headers)
        while isinstance(outcome, HeldRequest):
            clock.now += ASIDE_S
            ((_, outcome),) = picker.release()
        assert names.HEADER_REFER in outcome.headers
        headers = BACK
    last = pick(picker, "a", **headers)
    if isinstance(last, HeldRequest):
        clock.now += ASIDE_S
        ((_, last),) = picker.release()
    assert names.HEADER_REFER not in last.headers
    removed = ext_proc_messages.forwarded(last, to_headers=True).request_headers.response.header_mutation
    assert names.HEADER_REFER in removed.remove_headers, "Envoy has it of the try before"


def test_its_time_goes_on(picker, clock):
    first = pick(picker, "a", **HEAD)
    clock.now += 10.0
    report(picker, clock, one=with_room(2), two=with_room(2))
    assert pick(picker, "a", **BACK).timeout_s == pytest.approx(first.timeout_s - 10.1)


@pytest.mark.parametrize("authority", ["gateway", "10.0.0.1", "[::1]", "[fd00::1]:8080", "a-b.example:443"])
def test_a_request_to_any_usual_address_comes_back(picker, authority):
    outcome = pick(picker, "a", **HEAD | {":authority": authority})
    assert outcome.headers[names.HEADER_REFER] == f"http://{authority}{PATH}"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {**HEAD, ":path": "*"},
        {**HEAD, ":authority": "of_a_compose_file:8080"},  # Envoy does not follow these: its client would get the 307
        {**HEAD, ":authority": "gateway:"},
        {**HEAD, ":authority": "user@gateway"},
        {**HEAD, names.HEADER_TTFT: "60000"},  # its replica refuses it at once, and says when to come back
    ],
)
def test_what_a_replica_has_to_decide_does_not_come_back(picker, headers):
    assert names.HEADER_REFER not in pick(picker, "a", **headers).headers


def test_what_an_earlier_picker_sent_is_as_new(picker):
    assert isinstance(pick(picker, "a", **BACK), Destination)
    assert stands(picker) == (1, 1, 0)


@pytest.mark.parametrize("changed", [{":path": "/v1/responses/x/cancel"}, {":authority": "b"}, {":path": f"{PATH}?x"}])
def test_a_replica_cannot_send_a_request_elsewhere(picker, changed):
    assert not referrals.is_elsewhere(HEAD)
    assert picker.respond_to_head("POST", PATH, BACK) is None
    assert picker.respond_to_head("POST", PATH, {**BACK, ":scheme": "https"}) is None
    answer = picker.respond_to_head("POST", PATH, {**BACK, **changed})
    assert isinstance(answer, ImmediateResponse)
    assert answer.status == 503


def test_what_is_kept_of_lost_requests_is_bounded():
    offers, prefix = Referrals(), RequestPrefix(ParsedBody(model="s"), PATH, HEAD, body_bytes=1)
    for number in range(MOST_OFFERS + 10):
        request = RoutableRequest(id=str(number), path=PATH, prefix=prefix, until_s=1.0, client=HEAD)
        offers.offer(request, ONE)
    assert len(offers) == MOST_OFFERS
    offers.forget(str(MOST_OFFERS))
    assert len(offers) == MOST_OFFERS - 1
