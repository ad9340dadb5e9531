"""The picker's decision: which cluster and endpoints, or which refusal, and what it counts."""

import json

import pytest

from fakes.clock import Now
from fakes.gateway import NO_HOLD, accepted, pod, service, table
from kvasir_api import http_apis
from kvasir_api.state import RuntimeState, ServiceDemand
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.picker.destination import Destination
from kvasir_gateway.picker.metrics import GatewayMetrics, outcome
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_parser import ImmediateResponse, RequestBounds
from kvasir_gateway.routing_table import StateReading

BODY = b'{"model": "m", "prompt": "x"}'


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
        bounds=RequestBounds(max_body_bytes=1000),
        limits=NO_HOLD,
    )
    pods = [pod("s", "one", ip="10.0.0.1"), pod("s", "two", ip="10.0.0.2")]
    made.table = table([service("s", model="m"), service("empty")], pods)
    made.accepted_clusters = accepted(made.table)
    made.readings = {
        "10.0.0.1:8000": StateReading(state=RuntimeState(phase="ready", waiting_uncached_tokens=9000), at_s=100.0),
        "10.0.0.2:8000": StateReading(state=RuntimeState(phase="ready"), at_s=100.0),
    }
    return made


def where(answer):
    assert isinstance(answer, Destination)
    return answer.cluster, answer.addresses


def refusal(answer):
    assert isinstance(answer, ImmediateResponse)
    return answer.status, json.loads(answer.body)["error"]["code"]


def test_the_cheapest_endpoint_comes_first(picker):
    assert where(picker.pick(BODY, "t")) == ("default.s", ("10.0.0.2:8000", "10.0.0.1:8000"))


def test_why_endpoints_were_chosen_is_counted(picker, metrics):
    picker.pick(BODY, "one")
    picker.readings = {}
    picker.pick(BODY, "two")
    page = metrics.render(picker.table, picker.inflight, picker.held).decode()
    for reason in ("cheapest", "no_reading"):
        assert f'kvasir_gateway_choices_total{{namespace="default",reason="{reason}",service="s"}} 1.0' in page
    assert "kvasir_gateway_choice_seconds_count 2.0" in page


def test_a_request_is_in_flight_until_it_ended(picker, clock):
    picker.pick(BODY, "t")
    clock.now = 107.0
    assert picker.state().services == (
        ServiceDemand(namespace="default", name="empty"),
        ServiceDemand(namespace="default", name="s", inflight=1, requests=1, last_request_age_s=7.0),
    )
    picker.request_ended("t", status=200, client_left=False)
    assert picker.state().services[1].inflight == 0
    picker.request_ended("t", status=200, client_left=False)
    assert picker.state().services[1].inflight == 0


def test_no_endpoint_is_refused_and_counted(picker):
    body = b'{"model": "empty"}'
    assert refusal(picker.pick(body, "t")) == (503, "no_ready_replica")
    assert picker.state().services[0].refused == 1
    assert picker.state().services[0].inflight == 0


def test_a_cluster_that_envoy_has_not_accepted_is_not_named(picker):
    picker.accepted_clusters = frozenset()
    assert refusal(picker.pick(BODY, "t")) == (503, "no_ready_replica")


def test_all_pods_draining_is_no_endpoint(picker):
    picker.readings = {
        address: StateReading(state=RuntimeState(phase="draining"), at_s=100.0) for address in picker.readings
    }
    assert refusal(picker.pick(BODY, "t")) == (503, "no_ready_replica")


def test_an_unknown_model_is_counted_for_no_service(picker):
    assert refusal(picker.pick(b'{"model": "other"}', "t")) == (404, "model_not_found")
    assert sum(s.requests for s in picker.state().services) == 0


@pytest.mark.parametrize("length", ["1001", "99999999999999999999"])
def test_a_body_is_refused_by_its_announced_length(picker, length):
    answer = picker.respond_to_head("POST", "/v1/completions?x=1", {"content-length": length})
    assert refusal(answer) == (413, "body_too_large")


@pytest.mark.parametrize("length", ["1000", "0", "", "-1", "x", "9999²"])
def test_other_lengths_are_for_envoy_to_judge(picker, length):
    assert picker.respond_to_head("POST", "/v1/completions", {"content-length": length}) is None


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/health"])
def test_two_hosts_are_refused(picker, path):
    answer = picker.respond_to_head("GET", path, {":authority": "x,y"})
    assert refusal(answer) == (400, "malformed_request")


def test_a_pool_gets_no_endpoint_that_is_not_its_own(picker):
    chats = "/v1/chat/completions"
    found = picker.pick_now(BODY, "one", chats, {}, within=frozenset({"10.0.0.1:8000", "10.9.9.9:8000"}))
    assert where(found) == ("default.s", ("10.0.0.1:8000",))
    assert refusal(picker.pick_now(BODY, "two", chats, {}, within=frozenset())) == (503, "no_ready_replica")


@pytest.mark.parametrize(
    ("status", "client_left", "is_cut", "word"),
    [
        (200, False, False, "ok"),
        (200, False, True, "server_error"),
        (200, True, False, "aborted"),
        (0, True, True, "aborted"),
        (0, False, False, "server_error"),
        (400, False, False, "client_error"),
        (503, False, False, "server_error"),
    ],
)
def test_how_a_request_ended_is_one_word(status, client_left, is_cut, word):
    assert outcome(status, client_left=client_left, is_cut=is_cut) == word


HOLDER = "0123abcd" + http_apis.new_instance("default/s")[8:]  # the same in every worker, since it names a case
HELD = "resp_" + HOLDER + "1" * 24


@pytest.fixture
def holding(picker):
    """The busy pod holds responses."""
    busy = picker.readings["10.0.0.1:8000"]
    picker.readings["10.0.0.1:8000"] = StateReading(
        state=RuntimeState(phase="ready", instance=HOLDER, waiting_uncached_tokens=9000), at_s=100.0
    )
    assert busy.state.waiting_uncached_tokens == 9000
    return picker


@pytest.mark.parametrize("path", ["", "/cancel", "/input_items?limit=2"])
def test_a_stored_response_leads_to_who_holds_it(holding, path):
    target = f"/v1/responses/{HELD}{path}"
    assert holding.respond_to_head("GET", target, {}) is None
    assert where(holding.pick(b"", "t", target)) == ("default.s", ("10.0.0.1:8000",))
    assert holding.state().services[1].inflight == 1


@pytest.mark.parametrize("others", [0, 1])
def test_a_stored_response_is_found_on_a_stalled_pod(holding, others):
    stalled = RuntimeState(phase="ready", instance=HOLDER, stalled_s=3.0, message="EngineStalled: …")
    holding.readings["10.0.0.1:8000"] = StateReading(state=stalled, at_s=100.0)
    pods = [pod("s", "one", ip="10.0.0.1", ready=False, started=True), pod("s", "two", ip="10.0.0.2")]
    holding.table = table([service("s", model="m")], pods[: 1 + others])
    found = holding.pick(b"", "t", f"/v1/responses/{HELD}")
    assert where(found) == ("default.s", ("10.0.0.1:8000",))


def test_a_conversation_goes_on_where_it_is_held(holding):
    def pick(name, previous):
        body = json.dumps({"model": name, "input": "x", "previous_response_id": previous}).encode()
        return holding.pick(body, "t", "/v1/responses")

    assert pick("m", HELD).addresses == ("10.0.0.1:8000",)
    assert pick("m", None).addresses[0] == "10.0.0.2:8000"
    assert pick("m", "resp_" + "f" * 52).addresses[0] == "10.0.0.2:8000", "a pod says that it is not there"
    assert refusal(pick("empty", HELD)) == (503, "no_ready_replica")


def test_a_pool_gets_nothing_from_a_holder_that_is_not_its_own(holding):
    path, other = f"/v1/responses/{HELD}", frozenset({"10.0.0.2:8000"})
    assert where(holding.pick_now(b"", "a", path, {}, within=frozenset({"10.0.0.1:8000"})))[1] == ("10.0.0.1:8000",)
    assert refusal(holding.pick_now(b"", "b", path, {}, within=other)) == (404, "not_found")
    body = json.dumps({"model": "m", "input": "x", "previous_response_id": HELD}).encode()
    assert where(holding.pick_now(body, "c", "/v1/responses", {}, within=other))[1] == ("10.0.0.2:8000",)


@pytest.mark.parametrize("name", ["resp_" + "f" * 52, "resp_", "x", f"resp_{HOLDER}"])
def test_a_response_that_no_pod_holds_is_not_found(holding, name):
    assert refusal(holding.pick(b"", "t", f"/v1/responses/{name}")) == (404, "not_found")


@pytest.mark.parametrize("holder_is_there", [True, False])
@pytest.mark.parametrize("thief", ["aaa", "zzz"])
def test_a_pod_of_another_service_gets_nothing_by_the_instance_of_a_holder(holding, thief, holder_is_there):
    pods = [pod("s", "one", ip="10.0.0.1"), pod("evil", "thief", ip="10.0.0.9", namespace=thief)]
    evil = service("evil", namespace=thief)
    holding.table = table([service("s", model="m"), evil], pods[1 - holder_is_there :])
    holding.accepted_clusters = accepted(holding.table)
    holding.readings["10.0.0.9:8000"] = holding.readings["10.0.0.1:8000"]
    ours = "default.s", ("10.0.0.1:8000",)
    for target in (f"/v1/responses/{HELD}", f"/v1/chat/completions/chatcmpl-{HELD[5:]}/tool_results"):
        found = holding.pick(b"", target, target)
        assert where(found) == ours if holder_is_there else refusal(found) == (404, "not_found")
    body = json.dumps({"model": "m", "input": "x", "previous_response_id": HELD}).encode()
    found = holding.pick(body, "t", "/v1/responses")
    assert where(found) == ours if holder_is_there else refusal(found) == (503, "no_ready_replica")


def test_results_of_calls_lead_to_who_writes_the_answer(holding):
    target = f"/v1/chat/completions/chatcmpl-{HOLDER}{'1' * 24}/tool_results"
    assert holding.respond_to_head("POST", target, {}) is None
    assert where(holding.pick(b'{"results": []}', "t", target)) == ("default.s", ("10.0.0.1:8000",))


@pytest.mark.parametrize("name", ["chatcmpl-" + "f" * 52, "chatcmpl-mine", "x"])
def test_results_for_an_answer_that_no_pod_writes_are_refused(holding, name):
    target = f"/v1/chat/completions/{name}/tool_results"
    assert refusal(holding.pick(b'{"results": []}', "t", target)) == (404, "not_found")
    assert refusal(holding.respond_to_head("GET", target, {})) == (405, "method_not_allowed")


def abort(picker, *ids, headers=None):
    return picker.pick(json.dumps({"request_ids": ids}).encode(), "t", "/abort_requests", headers or {})


def test_an_abort_leads_to_who_writes_the_answers_and_is_no_arrival(holding, clock):
    ids = [f"{prefix}{HOLDER}{'1' * 24}" for prefix in http_apis.ID_PREFIXES]
    assert where(abort(holding, *ids, "cmpl-gone", "x")) == ("default.s", ("10.0.0.1:8000",))
    holding.request_ended("t", status=200, client_left=False)
    clock.now += 9.0
    assert holding.state().services[1] == ServiceDemand(namespace="default", name="s")
    abort(holding, f"cmpl-{'f' * 52}")
    assert holding.state().services[1] == ServiceDemand(namespace="default", name="s")


@pytest.mark.parametrize("from_relay", [True, False])
def test_an_abort_leads_to_where_an_answer_went_on_until_it_ends_there(holding, from_relay):
    other, here = http_apis.new_instance("default/s"), ("10.0.0.1:8000",)
    holding.readings["10.0.0.2:8000"] = StateReading(state=RuntimeState(phase="ready", instance=other), at_s=100.0)
    begun = [f"cmpl-{HOLDER}{'1' * 24}", f"cmpl-{'f' * 16}{HOLDER[16:]}{'1' * 24}"]
    for name, answer in enumerate(begun):
        headers = {"x-kvasir-answer": answer} | ({"x-kvasir-relayed": "r"} if from_relay else {})
        assert where(holding.pick(BODY, str(name), "/v1/completions", headers))[1][0] == "10.0.0.2:8000"
    if from_relay:
        ids = [*begun, f"cmpl-{other}{'2' * 24}"]
        assert where(abort(holding, *ids)) == ("default.s", ("10.0.0.2:8000",))
        for name in "01":
            holding.request_ended(name, status=200, client_left=False)
    assert where(abort(holding, begun[0])) == ("default.s", here)
    assert abort(holding, begun[1]).body == b'{"num_aborted":0}'


class CountedReadings(dict):
    """How often a reading was looked up."""

    def __init__(self, found):
        super().__init__(found)
        self.looks = 0

    def get(self, *asked):
        self.looks += 1
        return super().get(*asked)


def test_each_endpoint_is_looked_at_once_for_all_the_ids_of_an_abort(holding):
    holding.readings = counted = CountedReadings(holding.readings)
    others = [f"cmpl-{http_apis.new_instance('default/s')}{number:024}" for number in range(4000)]
    assert where(abort(holding, *others, HELD)) == ("default.s", ("10.0.0.1:8000",))
    assert counted.looks == 2
    abort(holding, *(str(number) for number in range(4000)))
    assert counted.looks == 2, "ids of another form name no replica"


@pytest.mark.parametrize(
    ("services", "body", "found"),
    [
        ([service("s", model="m")], b'{"prompt": "x"}', "default.s"),
        ([service("s", model="m")], b'{"model": null}', "default.s"),
        ([service("s", model="m")], b"[]", "default.s"),
        ([service("s", model="m")], b'{"model": ""}', " does not exist here."),
        ([service("s", model="m")], b'{"model": 5}', "The field `model` is a string that names a model."),
        (
            [service("s", model="m"), service("t", model="m")],
            b"{}",
            "The field `model` is needed, since 2 services have one.",
        ),
        ([service("s", model="m"), service("t")], b"{}", "The field `model` is needed, since 2 services have one."),
        ([], b"{}", "The field `model` is needed, since no service has one yet."),
    ],
)
def test_a_model_may_be_left_out_where_one_service_is_all_there_is(picker, services, body, found):
    picker.table = table(services, [pod("s", "one", ip="10.0.0.1")])
    for path in ("/v1/chat/completions", "/v1/messages", "/api/chat", "/score"):
        answer = picker.pick(body, path, path)
        if isinstance(answer, Destination):
            assert answer.cluster == found
        else:
            assert found in answer.body.decode()
            assert answer.status == (404 if "exist" in found else 400)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank", "/score", "/tokenize", "/detokenize"])
def test_routes_outside_of_v1_name_their_model(picker, path):
    assert picker.respond_to_head("POST", path, {}) is None
    assert isinstance(picker.pick(b'{"model": "m", "query": "q"}', "t", path), Destination)
    assert refusal(picker.pick(b'{"query": "q"}', "t", path)) == (400, None)
    assert refusal(picker.respond_to_head("POST", path + "/x", {})) == (404, "not_found") if path[:3] != "/v1" else True


@pytest.mark.parametrize(
    ("path", "body", "found"),
    [
        ("/api/chat", {"model": "m:latest"}, True),
        ("/api/show", {"name": "m"}, True),
        ("/v1/messages", {"model": "m", "system": "s"}, True),
        ("/v1/chat/completions", {"model": "m:latest"}, False),
        ("/v1/chat/completions", {"name": "m"}, False),
    ],
)
def test_other_surfaces_name_their_model_too(picker, path, body, found):
    assert picker.respond_to_head("POST", path, {}) is None
    assert isinstance(picker.pick(json.dumps(body).encode(), "t", path), Destination) == found


@pytest.mark.parametrize("path", ["/v1/responses", "/api/chat", "/v1/messages"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"model": 5, ',
        b'{"model": 5, "x": ' + b"[" * 100_000,
        b'{"name": "m", ',
        b"\xff",
        b'{"model": "m"} x',
    ],
    ids=["nothing", "cut", "cut after a wrong type", "deep after a wrong type", "cut name", "no text", "more"],
)
def test_what_is_no_json_is_told_on_every_surface(picker, path, body):
    answer = picker.pick(body, "t", path)
    assert (answer.status, answer.details) == (400, "invalid_json")


@pytest.mark.parametrize("value", [5, ["x"], {}, True, ""])
def test_a_wrong_field_besides_the_model_is_for_the_pod_to_judge(picker, value):
    body = json.dumps({"model": "m", "name": value, "previous_response_id": value}).encode()
    assert isinstance(picker.pick(body, "t", "/v1/responses"), Destination)


@pytest.mark.parametrize(
    ("method", "path", "status", "shape"),
    [
        ("POST", "/v1/messages", 404, {"type": "error", "error": {"type": "not_found_error", "message": "x"}}),
        ("POST", "/api/chat", 404, {"error": "x"}),
        ("GET", "/api/chat", 405, {"error": "x"}),
        ("PUT", "/v1/messages", 405, {"type": "error", "error": {"type": "invalid_request_error", "message": "x"}}),
    ],
)
def test_errors_take_the_shape_of_their_surface(picker, method, path, status, shape):
    answer = picker.respond_to_head(method, path, {}) or picker.pick(b'{"model": "other"}', "t", path)
    document = json.loads(answer.body)
    if "type" in shape:
        document["error"]["message"] = "x"
    else:
        document["error"] = "x"
    assert (answer.status, document) == (status, shape)
    assert int(answer.headers["content-length"]) == len(answer.body)


def test_ollamas_lists_are_the_services(picker):
    def names(path):
        return [card["name"] for card in json.loads(picker.respond_to_head("GET", path, {}).body)["models"]]

    assert names("/api/tags") == ["empty:latest", "m:latest"]
    assert names("/api/ps") == ["m:latest"]
    assert json.loads(picker.respond_to_head("GET", "/api/version", {}).body)["version"]
    assert refusal_status(picker.respond_to_head("POST", "/api/tags", {})) == 405


def refusal_status(answer):
    return answer.status
