"""Requests of a service whose replicas are all busy wait in the picker, and go as replicas report room."""

import json

import pytest
from msgspec import structs

from fakes.busy_picker import FULL, ONE, PATH, ROUTE, TWO, hold, made, pick, released, report, with_room
from fakes.clock import Now
from fakes.gateway import accepted, model_route, pod, service, table
from kvasir_api import http_apis, names
from kvasir_api.state import QueueBounds, RuntimeState, TtftForecast
from kvasir_gateway.picker.destination import Destination
from kvasir_gateway.picker.request_parser import ImmediateResponse, parse_body
from kvasir_gateway.placements import RequestPlacement

ONE_CHOICE = (http_apis.ANTHROPIC, http_apis.RESPONSES, "/api/chat", "/api/generate")
"""APIs that leave out `n` and `best_of`, as fields that they do not have."""


@pytest.fixture
def clock():
    return Now()


@pytest.fixture
def picker(clock):
    return made(clock)


def test_a_request_goes_where_there_is_room_and_waits_where_there_is_none(picker, clock):
    report(picker, clock, one=FULL, two=with_room(1))
    assert pick(picker, "a").addresses == (TWO, ONE)
    hold(picker, "b")  # the one place is taken by now, whatever was reported
    assert picker.release() == []
    assert [(found.name, found.held) for found in picker.state().services] == [("asleep", 0), ("s", 1)]


def test_held_requests_go_in_turns_of_tenants_as_room_is_reported_and_no_more_of_them(picker, clock):
    report(picker, clock, one=FULL, two=FULL)
    for name in ("a", "b", "c"):
        hold(picker, name, authorization="Bearer one")
    for name in ("x", "y"):
        hold(picker, name, authorization="Bearer two")
    report(picker, clock, one=with_room(1), two=with_room(2))
    assert released(picker) == [("a", TWO), ("x", ONE), ("b", TWO)]
    assert released(picker) == []
    hold(picker, "new", authorization="Bearer three")  # it does not pass those that wait
    report(picker, clock, one=RuntimeState(phase="ready", max_sequences=2, queue=QueueBounds(requests=2)), two=FULL)
    assert [name for name, _ in released(picker)] == ["y", "c", "new"]


def test_two_gateways_send_together_no_more_than_there_is_room_for(clock):
    one, two = (made(clock) for _ in range(2))
    for picker in (one, two):
        report(picker, clock, one=FULL, two=FULL)
        for name in ("a", "b", "c"):
            hold(picker, name)
        report(picker, clock, one=FULL, two=with_room(2))
    sent = one.release()
    assert [name for name, _ in sent] == ["a", "b"]
    for name, going in sent:
        placement = RequestPlacement(id=name, address=going.addresses[0])
        two.router.forwarded_elsewhere("one", placement, now_s=clock.now)
    assert two.release() == []


def test_pods_that_report_no_bounds_get_every_request(picker, clock):
    busy = structs.replace(FULL, queue=QueueBounds(), waiting=1000)
    report(picker, clock, one=busy, two=busy)
    assert isinstance(pick(picker, "a"), Destination)


def test_a_pod_with_nothing_to_do_gets_requests_whatever_bounds_it_claims(picker, clock):
    lying = RuntimeState(
        phase="ready",
        max_sequences=2,
        waiting_uncached_tokens=1 << 60,
        queue=QueueBounds(requests=1, tokens=1, seconds=1e-9),
        ttft=TtftForecast(queue_s=1e6, calibrated=True),
    )
    report(picker, clock, one=lying, two=lying)
    assert isinstance(pick(picker, "a"), Destination)


@pytest.mark.parametrize(
    "full",
    [
        structs.replace(FULL, queue=QueueBounds(tokens=100), waiting_uncached_tokens=100),
        structs.replace(FULL, queue=QueueBounds(seconds=5.0), ttft=TtftForecast(queue_s=5.1, calibrated=True)),
    ],
)
def test_a_queue_is_full_by_tokens_and_by_seconds_too(picker, clock, full):
    report(picker, clock, one=full, two=full)
    hold(picker, "a")
    idle = structs.replace(full, waiting=0, waiting_uncached_tokens=0, ttft=TtftForecast(queue_s=0.1, calibrated=True))
    report(picker, clock, one=full, two=idle)
    assert released(picker) == [("a", TWO)]


def test_predictions_bound_nothing_before_they_are_calibrated(picker, clock):
    early = structs.replace(FULL, queue=QueueBounds(seconds=5.0), ttft=TtftForecast(queue_s=50.0))
    report(picker, clock, one=early, two=early)
    assert isinstance(pick(picker, "a"), Destination)


def test_a_silent_pod_is_no_room_while_others_report(picker, clock):
    report(picker, clock, one=FULL, two=FULL)
    del picker.readings[TWO]
    hold(picker, "a")


def test_a_request_is_held_no_longer_than_its_objective_which_the_replica_then_decides(picker, clock):
    report(picker, clock, one=FULL, two=FULL)
    hold(picker, "first")
    hold(picker, "second", x_slo_ttft_ms="2000")
    clock.now += 1.5
    report(picker, clock, one=FULL, two=with_room(1))
    assert released(picker) == [("first", TWO)]
    report(picker, clock, one=FULL, two=FULL)
    clock.now += 0.5
    [(name, late)] = picker.release()
    assert (name, late.headers[names.HEADER_TTFT]) == ("second", "1")


def test_an_objective_that_is_over_passes_no_other_request(picker, clock):
    report(picker, clock, one=FULL, two=FULL)
    hold(picker, "first")
    hold(picker, "hurried", x_slo_ttft_ms="1")
    report(picker, clock, one=FULL, two=with_room(1))
    assert [(name, going.headers.get(names.HEADER_TTFT)) for name, going in picker.release()] == [
        ("first", None),
        ("hurried", "1"),  # which its replica refuses, since the room is taken
    ]


def test_a_replica_gets_what_is_left_of_a_clients_objective(picker, clock):
    default = structs.replace(FULL, queue=QueueBounds(requests=2, ttft_s=10.0))
    report(picker, clock, one=default, two=default)
    hold(picker, "own", x_slo_ttft_ms="4000")
    hold(picker, "default")
    hold(picker, "none", x_slo_ttft_ms="nonsense")  # for the replica to refuse
    clock.now += 0.9
    report(picker, clock, one=with_room(2), two=with_room(2))
    left = {name: going.headers.get(names.HEADER_TTFT) for name, going in picker.release()}
    assert left == {"own": "3000", "default": None, "none": None}


def test_an_objective_that_the_shortest_queue_misses_is_for_its_replica_to_refuse_at_once(picker, clock):
    slow = structs.replace(FULL, ttft=TtftForecast(queue_s=3.0))
    report(picker, clock, one=slow, two=slow)
    assert isinstance(pick(picker, "a", x_slo_ttft_ms="2900"), Destination)
    hold(picker, "b", x_slo_ttft_ms="3100")


def test_a_wait_for_a_start_takes_nothing_from_an_objective(picker, clock):
    hold(picker, "a", "asleep", x_slo_ttft_ms="100")
    clock.now += 50.0
    assert picker.release() == []
    picker.table = table([service("asleep")], [pod("asleep", "one", ip="10.0.0.3")])
    picker.accepted_clusters = accepted(picker.table)
    [(_, going)] = picker.release()
    assert names.HEADER_TTFT not in going.headers


def test_a_crowd_that_waited_for_a_start_is_not_poured_onto_the_full_replica(picker, clock):
    for name in ("a", "b", "c"):
        hold(picker, name, "asleep", x_slo_ttft_ms="100")
    clock.now += 50.0
    picker.table = table([service("asleep")], [pod("asleep", "one", ip="10.0.0.1")])
    picker.accepted_clusters = accepted(picker.table)
    report(picker, clock, one=FULL, two=FULL)
    assert picker.release() == []
    report(picker, clock, one=with_room(1), two=FULL)
    assert released(picker) == [("a", ONE)]


def test_who_waits_in_vain_is_told_that_replicas_are_busy(picker, clock):
    report(picker, clock, one=FULL, two=FULL)
    hold(picker, "a")
    clock.now += 60.0
    report(picker, clock, one=FULL, two=FULL)
    [(_, answer)] = picker.release()
    error = json.loads(answer.body)["error"]
    assert (answer.status, error["code"], int(answer.headers["retry-after"]) >= 1) == (429, "overloaded", True)
    assert "are busy, and no room came for this request within 60 s" in error["message"]


def test_a_busy_service_keeps_requests_for_one_at_zero_not_out(picker, clock):
    report(picker, clock, one=FULL, two=FULL)
    for number in range(6):
        hold(picker, f"busy-{number}", authorization="Bearer one")
    hold(picker, "waking", "asleep", authorization="Bearer one")
    [(name, answer)] = picker.release()
    assert (name, answer.status) == ("busy-5", 429)
    assert {found.name: found.held for found in picker.state().services} == {"asleep": 1, "s": 5}


def test_nothing_is_held_where_holding_is_off_or_the_proxy_holds_none(clock):
    off = made(clock, max_wait_s=0)
    report(off, clock, one=FULL, two=FULL)
    assert isinstance(pick(off, "a"), Destination)
    on = made(clock)
    report(on, clock, one=FULL, two=FULL)
    found = on.pick_now(b'{"model": "s"}', "a", PATH, {}, within=None)
    assert isinstance(found, Destination)


@pytest.mark.parametrize("free", [0, 2])
def test_a_proxy_that_holds_none_has_its_request_decided_by_a_replica_while_others_wait(picker, clock, free):
    report(picker, clock, one=FULL, two=FULL)
    hold(picker, "ours")
    report(picker, clock, one=FULL, two=with_room(free))
    found = picker.pick_now(b'{"model": "s"}', "theirs", PATH, {}, within=None)
    assert isinstance(found, Destination)
    assert found.cluster == "default.s"


def test_a_full_service_goes_by_its_fallback_and_waits_where_that_cannot_answer(picker, clock):
    report(picker, clock, one=FULL, two=FULL)
    assert hold(picker, "a", "default/r").service == "default.s"
    pods = [pod("s", "one", ip="10.0.0.1"), pod("asleep", "three", ip="10.0.0.3")]
    picker.table = table([service("s"), service("asleep")], pods, [ROUTE])
    picker.accepted_clusters = accepted(picker.table)
    [(name, going)] = picker.release()
    assert (name, going.cluster, going.fallback) == ("a", "default.asleep", "Saturated")


def test_a_service_for_whose_room_others_wait_is_saturated_and_not_at_zero(picker, clock):
    pods = [pod("s", "one", ip="10.0.0.1"), pod("zero", "two", ip="10.0.0.2"), pod("full", "three", ip="10.0.0.3")]
    route = model_route(
        "r",
        rules=[{"targets": [{"service": "s"}]}],
        fallbacks=[{"service": "zero", "when": ["AtZero"]}, {"service": "full", "when": ["Saturated"]}],
    )
    picker.table = table([service("s"), service("zero"), service("full")], pods, [route])
    picker.accepted_clusters = accepted(picker.table)
    report(picker, clock, one=FULL, two=with_room(2))
    hold(picker, "first")
    assert pick(picker, "second", "default/r").fallback == "Saturated"


def test_nothing_takes_the_room_for_which_a_long_prompt_waits(picker, clock):
    tokens = QueueBounds(tokens=100)
    full = structs.replace(FULL, queue=tokens, waiting_uncached_tokens=100)
    short = structs.replace(full, waiting_uncached_tokens=50)
    report(picker, clock, one=full, two=full)
    hold(picker, "first", prompt="x" * 600)
    hold(picker, "routed", "default/r")
    hold(picker, "hurried", x_slo_ttft_ms="1000")
    clock.now += 1.0
    report(picker, clock, one=short, two=short)
    assert picker.release() == []
    report(picker, clock, one=full, two=full)
    assert [(name, going.headers[names.HEADER_TTFT]) for name, going in picker.release()] == [("hurried", "1")]
    pods = [pod("s", "one", ip="10.0.0.1"), pod("asleep", "three", ip="10.0.0.3")]
    picker.table = table([service("s"), service("asleep")], pods, [ROUTE])
    picker.accepted_clusters = accepted(picker.table)
    report(picker, clock, one=short, two=short)
    [(name, going)] = picker.release()
    assert (name, going.cluster, going.fallback) == ("routed", "default.asleep", "Saturated")
    report(picker, clock, one=structs.replace(full, waiting=0, waiting_uncached_tokens=0), two=full)
    assert released(picker) == [("first", ONE)]


def test_a_turn_is_predicted_by_those_that_went_and_is_no_wake(picker, clock):
    report(picker, clock, one=FULL, two=FULL)
    for number in range(4):
        picker.pick(b'{"model": "s"}', str(number), PATH, {names.HEADER_RELAYED: f"r{number}"})
    assert {place.eta_s for place in picker.places().values()} == {None}
    for _ in range(2):
        clock.now += 1.9
        report(picker, clock, one=FULL, two=with_room(1))
        assert len(released(picker)) == 1
    clock.now += 1.0
    found = picker.places()
    assert {name: (place.place, place.of, place.phase) for name, place in found.items()} == {
        "r2": (1, 2, "queue"),
        "r3": (2, 2, "queue"),
    }
    assert [round(found[name].eta_s, 6) for name in ("r2", "r3")] == [12.0, 15.0]  # three wait at the replicas
    picker.table = table([service("s", created="2027-01-01T00:00:00Z")], [])
    assert {place.eta_s for place in picker.places().values()} == {None}  # none of these waits was for a start


def test_refusals_of_a_full_queue_say_why(picker, clock):
    report(picker, clock, one=FULL, two=FULL)
    for number in range(6):
        hold(picker, str(number))
    answer = pick(picker, "seventh")
    assert isinstance(answer, ImmediateResponse)
    assert "is busy, and as many requests as may wait for it" in json.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "path", "free", "goes"),
    [
        pytest.param({"n": 2}, PATH, 1, False, id="two choices, one place"),
        pytest.param({"n": 2}, PATH, 2, True, id="two choices, two places"),
        pytest.param({"prompt": ["a", "b", "c"]}, PATH, 2, False, id="three prompts"),
        pytest.param({"prompt": [[1], [2]], "best_of": 2}, PATH, 2, False, id="two prompts, twice each"),
        pytest.param({"prompt": [1, 2, 3]}, PATH, 1, True, id="one prompt of tokens"),
        pytest.param({"n": 5}, PATH, 2, True, id="more than an empty replica takes"),
        pytest.param({"n": "many"}, PATH, 1, True, id="no number"),
        pytest.param({"n": 10**400}, PATH, 1, True, id="beyond all numbers"),
        pytest.param({"n": True, "best_of": -2}, PATH, 1, True, id="no counts"),
        pytest.param({"n": 3, "input": ["a"]}, "/v1/embeddings", 1, True, id="nothing is generated"),
        pytest.param({"n": 2}, http_apis.CHATS, 1, False, id="two choices of a chat"),
        *(pytest.param({"n": 2, "best_of": 2}, path, 1, True, id=f"no field of {path}") for path in ONE_CHOICE),
    ],
)
def test_a_request_of_several_sequences_waits_for_as_many_places(picker, clock, fields, path, free, goes):
    report(picker, clock, one=with_room(free), two=FULL)
    outcome = picker.pick(json.dumps({"model": "s", **fields}).encode(), "a", path, {})
    assert isinstance(outcome, Destination) is goes


@pytest.mark.parametrize(
    ("fields", "path", "want"),
    [
        pytest.param({"n": 128}, http_apis.CHATS, 128, id="as many choices as a pod takes"),
        pytest.param({"n": 129}, http_apis.CHATS, 1, id="more choices"),
        pytest.param({"n": 2, "best_of": 4096}, PATH, 1, id="more to choose from"),
        pytest.param({"n": 2, "best_of": "4"}, PATH, 1, id="one of them no number"),
        pytest.param({"n": 2, "best_of": None}, PATH, 2, id="one of them left out"),
        pytest.param({"n": 2, "prompt": ["a"] * 128}, PATH, 256, id="as many answers as a pod takes"),
        pytest.param({"n": 3, "prompt": ["a"] * 128}, PATH, 1, id="more answers"),
        pytest.param({"prompt": ["a"] * 129}, PATH, 1, id="more prompts"),
        pytest.param({"n": 2, "prompt": ["a"] * 128}, http_apis.CHATS, 2, id="no field of a chat"),
    ],
)
def test_a_request_counts_as_one_where_the_pod_refuses_its_number(fields, path, want):
    assert parse_body(json.dumps(fields).encode(), path).num_sequences == want


def test_what_even_an_empty_replica_refuses_for_its_number_takes_no_room(picker, clock):
    report(picker, clock, one=with_room(2), two=FULL)
    for name, number in (("a", 5), ("b", 1)):
        body = json.dumps({"model": "s", "n": number}).encode()
        assert isinstance(picker.pick(body, name, PATH, {}), Destination)
    hold(picker, "c")


@pytest.mark.parametrize("path", [*ONE_CHOICE, http_apis.CHATS, PATH])
def test_no_number_that_a_pod_ignores_or_refuses_keeps_others_out(picker, clock, path):
    report(picker, clock, one=with_room(2), two=FULL)
    for name in ("a", "b"):
        body = json.dumps({"model": "s", "n": 4096, "best_of": 4096}).encode()
        assert isinstance(picker.pick(body, name, path, {}), Destination)


def changed(picker, services, routes):
    """What is listed now, with the replicas of `s`."""
    pods = [pod("s", "one", ip="10.0.0.1"), pod("s", "two", ip="10.0.0.2")]
    picker.table = table([service(name, model=model) for name, model in services.items()], pods, routes)
    picker.accepted_clusters = accepted(picker.table)


def test_a_route_that_is_edited_counts_for_requests_that_wait(picker, clock):
    services, rules = {"s": "", "asleep": ""}, [{"targets": [{"service": "asleep"}]}]
    changed(picker, services, [model_route("r", rules=rules)])
    report(picker, clock, one=with_room(1), two=FULL)
    hold(picker, "first", "default/r")
    hold(picker, "second", "default/r")
    assert picker.release() == []
    changed(picker, services, [model_route("r", rules=rules, fallbacks=[{"service": "s", "when": ["AtZero"]}])])
    assert released(picker) == [("first", ONE)]
    changed(picker, services, [])
    report(picker, clock, one=with_room(1), two=FULL)
    assert picker.release() == [], "a route that is gone has no fallback"


def test_a_request_whose_service_is_deleted_is_told_the_name_that_it_used(picker, clock):
    changed(picker, {"s": "org/Model"}, [])
    report(picker, clock, one=FULL, two=FULL)
    hold(picker, "a", "org/Model")
    changed(picker, {}, [])
    ((name, refused),) = picker.release()
    assert (name, refused.status) == ("a", 404)
    assert "`org/Model`" in json.loads(refused.body)["error"]["message"]
