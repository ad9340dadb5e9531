"""What the gateway may route to, from services, pods and readings."""

import pytest

from fakes.gateway import model_route, pod, service, table
from fakes.pod_owners import controller, workload, workloads
from kvasir_api import names
from kvasir_api.state import MeasuredRates, RuntimeState, TtftForecast
from kvasir_gateway import routing_table
from kvasir_gateway.choose import Candidate, ChoicePolicy, EndpointLoad, RequestSize, choose
from kvasir_gateway.queue_room import QueueRoom
from kvasir_gateway.routing_table import StateReading
from kvasir_kube import kinds
from kvasir_kube.kinds import INFERENCE_SERVICE


def only_endpoint(resource):
    (found,) = table([service("s")], [resource]).services[0].endpoints
    return found


@pytest.mark.parametrize(
    ("fields", "takes_requests"),
    [
        ({}, True),
        ({"ready": False}, False),
        ({"deleted": True}, False),
        ({"draining": True}, False),
        ({"phase": "Pending"}, True),
    ],
)
def test_a_pod_takes_requests_while_it_is_ready_and_does_not_leave(fields, takes_requests):
    assert only_endpoint(pod("s", "p", **fields)).takes_requests is takes_requests


@pytest.mark.parametrize("fields", [{"ip": None}, {"ip": ""}, {"phase": "Succeeded"}, {"phase": "Failed"}])
def test_a_pod_without_an_address_or_an_ended_one_is_no_endpoint(fields):
    assert table([service("s")], [pod("s", "p", **fields)]).services[0].endpoints == ()


def test_ports_are_those_that_the_pod_names():
    found = only_endpoint(pod("s", "p", ip="10.1.2.3", http=7000, ops=7001))
    assert (found.address, found.ops_url) == ("10.1.2.3:7000", "http://10.1.2.3:7001")


def test_addresses_of_version_six_are_bracketed():
    found = only_endpoint(pod("s", "p", ip="fd00::7"))
    assert (found.address, found.ops_url) == ("[fd00::7]:8000", "http://[fd00::7]:8001")


def test_ports_have_defaults():
    resource = {**pod("s", "p"), "spec": {"containers": [{"name": "runtime"}]}}
    assert only_endpoint(resource).address == "127.0.0.1:8000"


def test_pods_belong_to_the_service_of_their_namespace():
    found = table(
        [service("s", namespace="a"), service("s", namespace="b")],
        [pod("s", "one", namespace="a"), pod("s", "two", namespace="b"), pod("other", "three", namespace="a")],
    )
    assert {s.key: [e.pod for e in s.endpoints] for s in found.services} == {"a.s": ["one"], "b.s": ["two"]}


def controlled(by):
    found = pod("s", "p")
    return found | {"metadata": found["metadata"] | {"ownerReferences": by}}


OURS = "uid-default-s"
SET, DEPLOYMENT = f"{OURS}-replica-set", f"{OURS}-deployment"
WORKLOADS = [
    *workloads(service("s")),
    workload(kinds.REPLICA_SET, "of-the-service", controller(INFERENCE_SERVICE, OURS)),
    workload(kinds.REPLICA_SET, "round", controller(kinds.REPLICA_SET, "round")),
    workload(kinds.REPLICA_SET, "theirs", controller(kinds.DEPLOYMENT, "their-deployment")),
    workload(kinds.DEPLOYMENT, "their-deployment", controller(INFERENCE_SERVICE, "uid-default-other")),
    workload(kinds.REPLICA_SET, "forged", controller(kinds.DEPLOYMENT, "unseen")),
    workload(kinds.REPLICA_SET, "of-a-kind", controller(kinds.DEPLOYMENT, "of-another-kind")),
    workload(kinds.DEPLOYMENT, "of-another-kind", controller(kinds.SERVICE, OURS)),
    workload(kinds.REPLICA_SET, "elsewhere", controller(kinds.DEPLOYMENT, DEPLOYMENT), namespace="theirs"),
]


@pytest.mark.parametrize(
    ("owners", "belongs"),
    [
        ([controller(kinds.REPLICA_SET, SET)], True),
        ([controller(kinds.POD, "x") | {"controller": False}, controller(kinds.REPLICA_SET, SET)], True),
        ([], False),
        (None, False),
        ([controller(kinds.REPLICA_SET, SET) | {"controller": False}], False),
        ([controller(INFERENCE_SERVICE, OURS)], False),
        ([controller(kinds.REPLICA_SET, OURS)], False),
        ([controller(kinds.DEPLOYMENT, DEPLOYMENT)], False),
        ([controller(kinds.REPLICA_SET, DEPLOYMENT)], False),
        ([controller(kinds.DEPLOYMENT, SET)], False),
        ([controller(kinds.REPLICA_SET, SET) | {"apiVersion": "theirs.dev/v1"}], False),
        ([controller(kinds.REPLICA_SET, SET) | {"apiVersion": None}], False),
        ([controller(kinds.REPLICA_SET, "unseen")], False),
        ([controller(kinds.REPLICA_SET, "")], False),
        *(
            ([controller(kinds.REPLICA_SET, name)], False)
            for name in ("of-the-service", "round", "theirs", "forged", "of-a-kind", "elsewhere")
        ),
    ],
)
def test_a_pod_with_a_services_label_belongs_to_it_only_by_its_controllers(owners, belongs):
    (found,) = routing_table.build([service("s")], [controlled(owners)], WORKLOADS).services
    assert [endpoint.pod for endpoint in found.endpoints] == (["p"] if belongs else [])


def test_pods_of_a_service_that_was_made_again_are_not_its():
    again = service("s")
    again["metadata"]["uid"] = "another"
    assert routing_table.build([again], [pod("s", "p")], WORKLOADS).services[0].endpoints == ()


def test_a_service_is_the_same_object_until_it_or_a_pod_of_its_changes():
    known, services = routing_table.KnownObjects(), [service("a"), service("b")]
    of_a, of_b = pod("a", "a1", tls=True), pod("b", "b1")
    owners = [found for made in services for found in workloads(made)]

    def built(*pods, verifies=True):
        return routing_table.build(services, pods, owners, verifies=verifies, known=known).services

    a, b = built(of_a, of_b)
    assert all(again is before for again, before in zip(built(of_a, of_b), (a, b), strict=True))
    other, same = built(of_a, pod("a", "a2"), of_b)
    assert ([endpoint.pod for endpoint in other.endpoints], same is b) == (["a1", "a2"], True)
    unverified, same = built(of_a, of_b, verifies=False)
    assert ([endpoint.takes_requests for endpoint in unverified.endpoints], same.endpoints) == ([False], b.endpoints)
    owners.pop()
    assert [found.endpoints for found in built(of_a, of_b)] == [a.endpoints, ()]
    del services[0]
    assert [found.key for found in built(of_a, of_b)] == ["default.b"]


def test_a_pod_that_is_quarantined_is_no_endpoint_although_it_is_ready():
    quarantined = pod("s", "one", namespace="a")
    quarantined["metadata"]["labels"][names.LABEL_ROLE] = names.ROLE_QUARANTINE
    (found,) = table([service("s", namespace="a")], [quarantined, pod("s", "two", namespace="a")]).services
    assert [endpoint.pod for endpoint in found.endpoints] == ["two"]


def test_a_model_is_named_by_the_spec_or_by_the_object():
    found = table([service("one", model="org/one"), service("two")], [])
    assert {model: s.name for model, s in found.by_model.items()} == {"org/one": "one", "two": "two"}


def test_all_names_of_a_service_lead_to_it():
    named = service("one", model="org/one")
    named["spec"]["model"]["aliases"] = ["small", "two"]
    found = table([named, service("two")], [])
    # Both are of the same second, so that the first by name holds what both claim.
    assert {model: s.name for model, s in found.by_model.items()} == {
        "org/one": "one",
        "small": "one",
        "two": "one",
        "default/two": "two",
    }


def test_a_name_that_two_services_claim_belongs_to_the_older():
    younger = service("a", model="m", created="2026-02-01T00:00:00Z")
    older = service("z", model="m", created="2026-01-01T00:00:00Z")
    found = table([younger, older], [])
    assert {model: s.name for model, s in found.by_model.items()} == {"m": "z", "default/a": "a"}
    assert [s.name for s in found.services] == ["a", "z"]


def refused(resource, *names_):
    return resource | {"status": {"refusedNames": list(names_)}}


def test_a_name_that_was_refused_stays_so_when_its_service_is_gone():
    waits = refused(service("b", model="m", namespace="theirs"), "m")
    assert list(table([waits], []).by_model) == ["theirs/b"]
    again = service("a", model="m", created="2026-03-01T00:00:00Z")
    found = table([waits, again], [])
    assert {model: s.key for model, s in found.by_model.items()} == {"m": "default.a", "theirs/b": "theirs.b"}


def test_a_reserved_name_goes_to_its_namespace_before_the_operator_has_refused_others():
    older = service("a", model="m", namespace="theirs", created="2025-01-01T00:00:00Z")
    own = refused(service("b", model="m", namespace="models"), "m")
    found = routing_table.build([older, own], [], reserved_names={"m": "models"})
    assert {model: s.key for model, s in found.by_model.items()} == {"m": "models.b", "theirs/a": "theirs.a"}
    found = routing_table.build([older], [], reserved_names={"m": "models"})
    assert list(found.by_model) == ["theirs/a"], "no service has it"


def test_a_service_is_reached_by_its_namespace_and_name_whatever_others_claim():
    older = service("a", model="default/b", namespace="theirs", created="2025-01-01T00:00:00Z")
    found = table([older, service("b", model="m"), service("c", model="m")], [])
    wanted = {"default/b": "default.b", "theirs/a": "theirs.a", "m": "default.b", "default/c": "default.c"}
    assert {name: found.service(name).key for name in wanted} == wanted
    assert sorted(found.by_model) == ["default/b", "default/c", "m", "theirs/a"]
    assert found.service("default/x") is None


def test_backends_of_a_route_are_its_own():
    route = model_route("r", rules=[{"targets": [{"service": "b"}]}], backends=[{"name": "b", "model": "org/m"}])
    found = table([service("b", model="chat")], [], [route])
    external = found.by_key("default.r/b")
    assert (external.name, external.model, external.backend, external.may_start) == ("r/b", "org/m", "b", False)
    assert found.service("chat").backend == ""
    assert found.service("default/r/b") is None, "no client names it by itself"
    assert "default/r" in found.listed()


def test_half_an_object_is_survived():
    found = routing_table.build([{"metadata": {"name": "s"}}], [{}, {"metadata": {"labels": None}, "status": None}])
    assert found.by_model["s"].endpoints == ()


def test_a_change_is_told_in_a_sentence():
    one = table([service("s", model="m")], [pod("s", "p")])
    none = table([service("s", model="m")], [pod("s", "p", ready=False)])
    assert routing_table.changes(routing_table.EMPTY, one) == "default.s serves 'm' with 1 ready replicas"
    assert routing_table.changes(one, none) == "default.s serves 'm' with 0 ready replicas"
    assert routing_table.changes(one, routing_table.EMPTY) == "default.s no longer serves 'm'"
    assert routing_table.changes(one, one) == ""


STATE = RuntimeState(
    phase="ready",
    running=4,
    waiting=2,
    waiting_uncached_tokens=300,
    heartbeat_age_s=0.5,
    device="cpu",
    kernels="cpp",
    max_sequences=64,
    rates=MeasuredRates(prefill_tokens_per_s=2000.0, decode_step_s=0.03, decode_slope_s=0.001, stall_fraction=0.4),
    ttft=TtftForecast(queue_s=0.7),
)


def candidates_of(reads, *, now_s=100.0):
    served = table([service("s")], [pod("s", "p")]).services[0]
    return routing_table.candidates(
        served,
        {"127.0.0.1:8000": reads} if reads else {},
        now_s=now_s,
        inflight={"127.0.0.1:8000": 3}.get,
        since=lambda address, moment_s: (2, 50) if moment_s == 99.0 else (0, 0),
    )


def test_a_reading_comes_with_its_age_and_what_was_sent_since():
    assert candidates_of(StateReading(state=STATE, at_s=99.0)) == [
        Candidate(
            address="127.0.0.1:8000",
            inflight=3,
            recent=2,
            recent_tokens=50,
            load=EndpointLoad(
                kind="cpu/cpp",
                age_s=1.5,
                running=4,
                waiting=2,
                waiting_uncached_tokens=300,
                prefill_tokens_per_s=2000.0,
                queue_s=0.7,
                stall_fraction=0.4,
                decode_slope_s=0.001,
                max_sequences=64,
                room=QueueRoom(places=4),
            ),
        )
    ]


@pytest.mark.parametrize(
    "read",
    [None, StateReading(state=STATE, at_s=80.0), StateReading(state=RuntimeState(phase="loading"), at_s=99.0)],
    ids=["missing", "too old", "not ready"],
)
def test_a_pod_without_a_reading_to_trust_is_known_by_its_address_only(read):
    assert candidates_of(read) == [Candidate(address="127.0.0.1:8000", inflight=3)]


def test_a_pod_that_says_that_it_drains_is_no_candidate():
    assert candidates_of(StateReading(state=RuntimeState(phase="draining"), at_s=99.0)) == []


def test_lies_below_zero_are_no_bonus():
    lying = RuntimeState(phase="ready", running=-9, waiting=-9, waiting_uncached_tokens=-9, heartbeat_age_s=-9.0)
    (found,) = candidates_of(StateReading(state=lying, at_s=100.0))
    assert found.load == EndpointLoad(kind="/", age_s=0.0)


@pytest.mark.parametrize(
    ("prefill", "slope", "queue"), [(-5.0, -5.0, -5.0), (1e-308, 1e308, 1e308), (1e308, 61.0, 1e6)]
)
def test_what_cannot_be_true_was_not_measured(prefill, slope, queue):
    rates = MeasuredRates(prefill_tokens_per_s=prefill, decode_slope_s=slope)
    lying = RuntimeState(phase="ready", rates=rates, ttft=TtftForecast(queue_s=queue))
    (found,) = candidates_of(StateReading(state=lying, at_s=100.0))
    assert found.load == EndpointLoad(kind="/")


def stalled(seconds):
    state = RuntimeState(phase="ready", stalled_s=seconds, heartbeat_age_s=seconds, message="EngineStalled: …")
    return StateReading(state=state, at_s=100.0)


def with_pods(*pods):
    """Candidates of a service whose pods listen on ports 7000 and on, each with its reading."""
    made = [
        pod("s", f"p{number}", http=7000 + number, ready=ready, started=started, draining=draining)
        for number, (ready, started, draining, _) in enumerate(pods)
    ]
    readings = {f"127.0.0.1:{7000 + number}": reading for number, (*_, reading) in enumerate(pods) if reading}
    served = table([service("s")], made).services[0]
    found = routing_table.candidates(served, readings, now_s=100.0, inflight=lambda _: 0, since=lambda *_: (0, 0))
    reachable = [endpoint.pod for endpoint in served.reachable]
    chosen = choose(found, RequestSize(prompt_tokens=10), policy=ChoicePolicy()).addresses if found else ()
    return reachable, [f"p{address[-1]}" for address in chosen]


READY = StateReading(state=RuntimeState(phase="ready"), at_s=100.0)
INVALID = StateReading(state=RuntimeState(phase="ready", message="model_output_invalid: …"), at_s=100.0)
OLDER = StateReading(state=RuntimeState(phase="ready"), at_s=97.9)
DRAINING = StateReading(state=RuntimeState(phase="draining"), at_s=100.0)
LOADING = StateReading(state=RuntimeState(phase="loading"), at_s=100.0)


@pytest.mark.parametrize(
    ("pods", "reachable", "chosen"),
    [
        ([(True, True, False, READY), (False, True, False, stalled(3))], ["p0", "p1"], ["p0"]),
        ([(True, True, False, DRAINING), (False, True, False, stalled(3))], ["p0", "p1"], ["p1"]),
        ([(False, True, False, stalled(9)), (False, True, False, stalled(3))], ["p0", "p1"], ["p1", "p0"]),
        ([(False, True, False, READY)], ["p0"], ["p0"]),  # its node cannot report
        ([(True, True, False, stalled(3)), (False, True, False, READY)], ["p0", "p1"], ["p1", "p0"]),
        ([(True, True, False, None), (False, True, False, OLDER)], ["p0", "p1"], ["p0"]),
        ([(False, True, False, INVALID)], ["p0"], []),
        ([(False, True, False, None)], ["p0"], []),
        ([(False, False, False, LOADING)], [], []),
        ([(False, True, True, stalled(3))], [], []),
    ],
    ids=[
        "one is ready",
        "one is ready and says that it drains",
        "all are stalled",
        "its condition is wrong",
        "its condition is wrong, and another is stalled",
        "its condition may be right",
        "its model is broken",
        "it is silent",
        "it starts",
        "it leaves",
    ],
)
def test_where_no_ready_pod_takes_requests_the_least_stalled_is_chosen(pods, reachable, chosen):
    assert with_pods(*pods) == (reachable, chosen)


def test_pods_that_speak_tls_get_requests_once_they_can_be_verified():
    services, pods = [service("a")], [pod("a", "p", tls=True), pod("a", "q")]
    made = [workload for one in services for workload in workloads(one)]
    (known,), (unknown,) = (
        routing_table.build(services, pods, made, verifies=verifies).services for verifies in (True, False)
    )
    secure, plain = known.endpoints
    assert (secure.server_name, secure.ops_url) == ("a.default.svc", "https://127.0.0.1:8001#a.default.svc")
    assert (plain.server_name, plain.ops_url) == ("", "http://127.0.0.1:8001")
    assert [endpoint.takes_requests for endpoint in known.endpoints] == [True, True]
    assert [endpoint.pod for endpoint in unknown.reachable] == ["q"]
