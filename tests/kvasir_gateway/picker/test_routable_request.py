"""What routing reads of a request, and the body that another service's pods get."""

import json

import pytest

from fakes.gateway import grant, model_route, service, table
from kvasir_api import names
from kvasir_api.openai_errors import ApiError
from kvasir_api.tenant_keys import TenantKeys
from kvasir_gateway.picker.routable_request import Ends, routable
from kvasir_gateway.picker.tenant_gate import TenantGate

CHAT = "/v1/chat/completions"
ENDS = Ends(began_s=100.0, timeout_s=60.0)
TABLE = table(
    [service("a", model="chat"), service("b")],
    [],
    [
        model_route(
            "chat",
            rules=[{"match": {"minPriority": 5}, "targets": [{"service": "gone"}]}, {"targets": [{"service": "b"}]}],
            timeoutSeconds=7,
        ),
        model_route("only", rules=[{"match": {"headers": {"x-a": "1"}}, "targets": [{"service": "a"}]}]),
    ],
)

OPEN = TenantGate(clock=lambda: 0.0, wall=lambda: 0.0, publish=lambda _: None)


def closed(*services, **fields):
    made = TenantGate(clock=lambda: 0.0, wall=lambda: 0.0, publish=lambda _: None)
    made.take(TenantKeys(tenants=(grant("t", "k", services=services, **fields),)))
    return made


def found(body, headers=None, path=CHAT, tenants=OPEN, routes=TABLE, name="id"):
    return routable(json.dumps(body).encode(), name, path, headers or {}, table=routes, tenants=tenants, ends=ENDS)


@pytest.mark.parametrize(
    ("body", "headers", "want", "until_s"),
    [
        ({"model": "chat"}, {}, "default.b", 107.0),
        ({"model": "default/chat"}, {}, "default.b", 107.0),
        ({"model": "default/a"}, {}, "default.a", 160.0),
        ({"model": "chat", "priority": 5}, {}, "default.gone", 107.0),
        ({"model": "chat", "priority": 5}, {names.HEADER_PRIORITY: "4"}, "default.b", 107.0),
        ({"model": "chat"}, {names.HEADER_PRIORITY: "5"}, "default.gone", 107.0),
        ({"model": "chat"}, {names.HEADER_PRIORITY: "urgent"}, "default.b", 107.0),
        ({"model": "default/only"}, {"x-a": "1"}, "default.a", 160.0),
        ({"model": "chat"}, {names.HEADER_SERVICE: "default/a"}, "default.b", 107.0),
        ({"model": "chat"}, {names.HEADER_SERVICE: "default/a", names.HEADER_RELAYED: "x"}, "default.a", 107.0),
    ],
)
def test_the_service_and_the_end_of_a_request(body, headers, want, until_s):
    target, request = found(body, headers)
    assert (target.key, request.until_s) == (want, until_s)


def test_a_request_that_no_rule_matches_is_refused():
    refusal = found({"model": "default/only"})
    assert isinstance(refusal, ApiError)
    assert (refusal.status, refusal.code) == (400, "no_matching_rule")
    assert "default/only" in refusal.message


def test_a_service_that_is_not_there_has_no_endpoints():
    target, _ = found({"model": "chat", "priority": 9})
    assert (target.endpoints, target.may_start) == ((), False)


@pytest.mark.parametrize(
    ("path", "body", "want"),
    [
        (CHAT, '{"model": "chat", "n": 1e400, "x": "é\\u2603", "a": [1, 2.50]}', b'"n":1e400,"x":"\xc3\xa9\\u2603"'),
        ("/api/chat", '{"name": "chat:latest", "options": {"a": 1}}', b'"options":{"a": 1}'),
    ],
)
def test_a_body_for_another_service_names_it_and_is_the_same_besides(path, body, want):
    target, request = routable(body.encode(), "id", path, {}, table=TABLE, tenants=OPEN, ends=ENDS)
    sent = request.body_for(target, TABLE)
    assert sent is not None
    assert b'"model":"default/b"' in sent
    assert b'"name"' not in sent
    assert want in sent


@pytest.mark.parametrize("model", ["default/a", "b"])
def test_a_body_that_names_its_service_stays(model):
    target, request = found({"model": model})
    assert request.body_for(target, TABLE) is None


def test_routes_without_a_service_of_their_name_are_listed_with_their_namespace():
    assert TABLE.listed().keys() == {"chat", "b", "default/only"}


@pytest.mark.parametrize(
    ("services", "key", "want"),
    [
        (("b",), "k", "default.b"),
        (("a",), "k", "model_not_found"),
        (("b",), "other", "invalid_api_key"),
        ((), "k", "default.b"),
    ],
)
def test_a_route_leads_only_to_services_that_the_tenant_may_use(services, key, want):
    answer = found({"model": "chat"}, {"authorization": f"Bearer {key}"}, tenants=closed(*services))
    assert (answer.code if isinstance(answer, ApiError) else answer[0].key) == want


@pytest.mark.parametrize(
    ("services", "key", "want"),
    [
        ((), "other", "invalid_api_key"),
        ((), "", "invalid_api_key"),
        (("b",), "k", "model_not_found"),
        (("a",), "k", "no_matching_rule"),
        ((), "k", "no_matching_rule"),
    ],
)
def test_only_who_may_use_a_service_of_a_route_is_told_of_its_rules(services, key, want):
    answer = found({"model": "default/only"}, {"authorization": f"Bearer {key}"}, tenants=closed(*services))
    assert isinstance(answer, ApiError)
    assert answer.code == want


def test_a_tenants_requests_are_shared_out_among_its_own_services():
    share = model_route("share", rules=[{"targets": [{"service": "a"}, {"service": "b"}]}])
    routes = table([service("a"), service("b")], [], [share])
    for services, want in ((("a",), {"default.a"}), (("b",), {"default.b"}), ((), {"default.a", "default.b"})):
        answers = [
            found(
                {"model": "default/share"}, {"authorization": "Bearer k"}, CHAT, closed(*services), routes, str(number)
            )
            for number in range(40)
        ]
        assert {target.key for target, _ in answers} == want


def test_a_route_does_not_take_the_name_of_another_namespaces_service():
    llama = service("llama", model="default/Llama-8B", namespace="models")
    taker = model_route(
        "taker", modelName="Llama-8B", created="2026-02-01T00:00:00Z", rules=[{"targets": [{"service": "a"}]}]
    )
    target, request = found({"model": "default/Llama-8B"}, routes=table([llama, service("a")], [], [taker]))
    assert (target.key, request.route) == ("models.llama", None)


def test_a_service_does_not_take_the_name_of_an_older_route():
    taker = service("x", model="default/chat", namespace="evil", created="2026-02-01T00:00:00Z")
    route = model_route("chat", rules=[{"targets": [{"service": "a"}]}])
    target, _ = found({"model": "default/chat"}, routes=table([taker, service("a")], [], [route]))
    assert target.key == "default.a"


@pytest.mark.parametrize(("own", "want"), [(None, "b"), (2, "b"), (9, "gone")])
def test_rules_read_the_priority_that_the_pod_will_get(own, want):
    target, _ = found({"model": "chat", "priority": own}, {"authorization": "Bearer k"}, tenants=closed(priority=1))
    assert target.name == want
