"""The picker with tenants: who may use what, what a request gets on its way, and what counts until it ends."""

import json

import pytest

from fakes.clock import Now
from fakes.gateway import NO_HOLD, accepted, grant, model_route, pod, service, table
from kvasir_api import http_apis, names, tenants
from kvasir_api.state import PrefixDigest, RuntimeState
from kvasir_api.tenant_keys import TenantKeys
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.hold_queue import HeldRequest, HoldLimits
from kvasir_gateway.picker.destination import Destination
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_parser import ImmediateResponse, ParsedBody, RequestBounds
from kvasir_gateway.picker.request_prefix import RequestPrefix
from kvasir_gateway.placements import TenantUse
from kvasir_gateway.routing_table import StateReading

CHATS = http_apis.CHATS


def body(model="chat", **fields):
    return json.dumps({"model": model, "messages": [{"role": "user", "content": "x"}], **fields}).encode()


def key(value):
    return {"authorization": f"Bearer {value}"}


@pytest.fixture
def clock():
    return Now()


@pytest.fixture
def picker(clock):
    return made(clock)


def made(clock, *, limits=NO_HOLD, tenant_header="", pods=("chat",), publish=lambda _: None, wall=lambda: 50.0):
    picker = Picker(
        metrics=GatewayMetrics(),
        clock=clock,
        draw=lambda: 0,
        policy=ChoicePolicy(),
        bounds=RequestBounds(max_body_bytes=1000),
        limits=limits,
        publish=publish,
        wall=wall,
    )
    services = [service("chat"), service("code"), service("open", namespace="free")]
    services[0]["spec"]["runtime"] = {"tenantHeader": tenant_header}
    picker.table = table(services, [pod(name, "one") for name in pods])
    picker.accepted_clusters = accepted(picker.table)
    return picker


def publish(picker, *grants):
    picker.tenants.take(TenantKeys(tenants=grants))


def ask(picker, name="r", *, model="chat", headers=None, path=CHATS, **fields):
    return picker.pick(body(model, **fields), name, path, headers or {})


def refusal(answer):
    assert isinstance(answer, ImmediateResponse), answer
    return answer.status, json.loads(answer.body)["error"]["code"]


def models(answer):
    return [card["id"] for card in json.loads(answer.body)["data"]]


def test_without_tenants_no_key_is_needed(picker):
    found = ask(picker)
    assert isinstance(found, Destination)
    assert (found.cluster, found.addresses) == ("default.chat", ("127.0.0.1:8000",))


@pytest.mark.parametrize(
    ("headers", "model", "wanted"),
    [
        ({}, "chat", (401, "invalid_api_key")),
        (key("wrong"), "chat", (401, "invalid_api_key")),
        (key("wrong"), "no-such", (401, "invalid_api_key")),
        (key("k-code"), "chat", (404, "model_not_found")),
        (key("k-code"), "default/chat", (404, "model_not_found")),
        (key("k-chat"), "no-such", (404, "model_not_found")),
        (key("k-gone"), "chat", (401, "invalid_api_key")),
        ({}, "free/open", (503, "no_ready_replica")),
        (key("k-chat"), "open", (503, "no_ready_replica")),
    ],
)
def test_a_key_opens_the_services_of_its_tenant(picker, headers, model, wanted):
    publish(
        picker,
        grant("chatter", "k-chat", services=("chat",)),
        grant("coder", "k-code", services=("code",)),
        grant("gone", "k-gone", until=50.0),
    )
    assert refusal(ask(picker, model=model, headers=headers)) == wanted
    assert isinstance(ask(picker, headers=key("k-chat")), Destination)


def test_a_key_whose_grace_ends_while_it_is_looked_at_is_of_its_tenant(clock):
    """Else its request would have no limits, and the tenant's name that its client sent."""
    times = iter([49.9])
    picker = made(clock, tenant_header="x-tenant", wall=lambda: next(times, 50.1))
    publish(picker, grant("leaving", "k", until=50.0, requests_per_minute=9))
    destination = ask(picker, headers={**key("k"), "x-tenant": "other"})
    assert destination.headers["x-tenant"] == "leaving"
    assert destination.headers["x-ratelimit-limit-requests"] == "9"
    assert refusal(ask(picker, headers=key("k"))) == (401, "invalid_api_key")


def test_lists_show_a_caller_its_models(picker):
    publish(picker, grant("coder", "k", services=("code",)))
    for headers, seen in ((key("k"), ["code", "open"]), (key("wrong"), ["open"]), ({}, ["open"])):
        assert models(picker.respond_to_head("GET", "/v1/models", headers)) == seen
        tags = json.loads(picker.respond_to_head("GET", "/api/tags", headers).body)["models"]
        assert [tag["name"] for tag in tags] == [f"{name}:latest" for name in seen]
    assert picker.respond_to_head("GET", "/v1/models/chat", key("k")).status == 404
    assert picker.respond_to_head("GET", "/v1/models/code", key("k")).status == 200
    assert picker.respond_to_head("GET", "/health", {}).status == 200


def test_who_sees_nothing_for_want_of_a_key_is_told_so(picker):
    publish(picker, grant("t", "k"), grant("u", "k", namespace="free"))
    assert refusal(picker.respond_to_head("GET", "/v1/models", {})) == (401, "invalid_api_key")
    assert models(picker.respond_to_head("GET", "/v1/models", key("k"))) == ["chat", "code", "open"]


def test_the_only_model_of_a_caller_needs_no_name(picker):
    publish(picker, grant("t", "k", services=("chat",)), grant("u", "other", namespace="free"))
    assert isinstance(picker.pick(b'{"messages": []}', "r", CHATS, key("k")), Destination)


def test_what_a_pod_holds_needs_the_key_too(picker):
    instance = http_apis.new_instance("default/chat")
    picker.readings = {"127.0.0.1:8000": StateReading(state=RuntimeState(phase="ready", instance=instance), at_s=100.0)}
    path = f"/v1/responses/resp_{instance}{'0' * 8}"
    assert isinstance(picker.pick(b"", "r", path, {}), Destination)
    publish(picker, grant("t", "k"), grant("coder", "k-code", services=("code",)))
    assert refusal(picker.pick(b"", "r", path, {})) == (401, "invalid_api_key")
    assert refusal(picker.pick(b"", "r", path, key("k-code"))) == (404, "not_found")
    assert isinstance(picker.pick(b"", "r", path, key("k")), Destination)


@pytest.fixture
def writing(clock):
    """The picker before replicas that write answers: of chat by the key k-chat, of code by k-code; and their ids."""
    picker = made(clock, pods=("chat", "code"))
    pods = [pod("chat", "one", ip="10.0.0.1"), pod("code", "one", ip="10.0.0.2")]
    picker.table = table([service("chat"), service("code"), service("open", namespace="free")], pods)
    names_ = {name: http_apis.new_instance(f"default/{name}") for name in ("chat", "code")}
    picker.readings = {
        f"10.0.0.{number}:8000": StateReading(state=RuntimeState(phase="ready", instance=instance), at_s=100.0)
        for number, instance in enumerate(names_.values(), 1)
    }
    publish(
        picker, grant("chatter", "k-chat", services=("chat",)), grant("coder", "k-code", services=("code",)),
        grant("both", "k-both"),
    )  # fmt: skip
    return picker, {name: f"cmpl-{instance}{'0' * 24}" for name, instance in names_.items()}


def abort(picker, *ids, headers, name="abort"):
    return picker.pick(json.dumps({"request_ids": ids}).encode(), name, "/abort_requests", headers)


NOTHING = 200, b'{"num_aborted":0}'


def test_an_abort_tells_nothing_of_services_that_its_caller_may_not_use(writing):
    picker, ids = writing
    own = abort(picker, ids["chat"], ids["code"], "cmpl-gone", headers=key("k-chat"))
    assert isinstance(own, Destination), "as if the other id were of no replica"
    assert own.addresses == ("10.0.0.1:8000",)
    for headers in (key("k-chat"), key("wrong"), {}):
        found = [abort(picker, one, headers=headers) for one in (ids["code"], "cmpl-" + "f" * 52, "x")]
        assert [(one.status, one.body) for one in found] == [NOTHING] * 3
    assert refusal(abort(picker, *ids.values(), headers=key("k-both"))) == (400, None)


def test_who_may_use_no_service_is_refused_before_anything_is_looked_up(writing):
    picker, ids = writing
    publish(picker, grant("t", "k"), grant("u", "l", namespace="free"))
    picker.readings = None
    for one in (ids["chat"], "cmpl-" + "f" * 52, "x"):
        assert refusal(abort(picker, one, headers=key("wrong"))) == (401, "invalid_api_key")
        assert refusal(picker.pick(b"", "r", f"/v1/responses/{one}", {})) == (401, "invalid_api_key")


def test_what_no_pod_holds_looks_to_a_caller_without_a_key_as_what_one_holds(writing):
    picker, ids = writing
    for one in (ids["chat"].replace("cmpl-", "resp_"), "resp_" + "f" * 52, "x"):
        assert refusal(picker.pick(b"", "r", f"/v1/responses/{one}", {})) == (401, "invalid_api_key")
        assert refusal(picker.pick(b"", "r", f"/v1/responses/{one}", key("k-code"))) == (404, "not_found")


def test_aborts_are_bounded_by_the_rate_of_requests_and_by_nothing_else(writing):
    picker, ids = writing
    publish(picker, grant("t", "k", requests_per_minute=3, tokens_per_minute=10, concurrent_requests=1))
    assert isinstance(ask(picker, "running", headers=key("k")), Destination)
    aborted = [abort(picker, ids["chat"], headers=key("k"), name=name) for name in ("a", "b", "c")]
    assert [one.headers["x-ratelimit-remaining-requests"] for one in aborted] == ["1", "0", "0"]
    assert refusal(aborted[-1]) == (429, "rate_limit_exceeded")
    chat = next(one for one in picker.state().services if one.name == "chat")
    assert (chat.requests, chat.refused) == (1, 0)


def test_aborts_that_find_nothing_count_as_well(writing):
    picker, ids = writing
    publish(picker, grant("t", "k", requests_per_minute=3))
    found = [abort(picker, "cmpl-" + "f" * 52, headers=key("k")) for _ in range(4)]
    assert [one.status for one in found] == [200, 200, 200, 429]
    assert refusal(abort(picker, ids["chat"], headers=key("k"))) == (429, "rate_limit_exceeded")


def test_gateways_count_aborts_together(clock):
    shared = []
    picker = made(clock, publish=shared.append)
    instance = http_apis.new_instance("default/chat")
    picker.readings = {"127.0.0.1:8000": StateReading(state=RuntimeState(phase="ready", instance=instance), at_s=100.0)}
    publish(picker, grant("t", "k", requests_per_minute=3))
    abort(picker, f"cmpl-{instance}0", headers=key("k"))
    assert [use for use in shared if isinstance(use, TenantUse)] == [TenantUse(tenant="default/t", requests=1)]


def test_limits_are_told_and_kept(picker):
    publish(picker, grant("t", "k", requests_per_minute=2, tokens_per_minute=600))
    first = ask(picker, "a", headers=key("k"))
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert int(first.headers["x-ratelimit-remaining-tokens"]) < 600
    ask(picker, "b", headers=key("k"))
    refused = ask(picker, "c", headers=key("k"))
    assert refusal(refused) == (429, "rate_limit_exceeded")
    assert refused.headers["retry-after"] == "30"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"


def test_a_refusal_by_a_limit_gives_no_tokens_back(picker):
    publish(picker, grant("t", "k", requests_per_minute=1, tokens_per_minute=600))
    left = [ask(picker, name, headers=key("k")).headers["x-ratelimit-remaining-tokens"] for name in ("a", "b")]
    picker.request_ended("b", status=429, client_left=False)
    assert [ask(picker, "c", headers=key("k")).headers["x-ratelimit-remaining-tokens"], *left] == left[:1] * 3


def test_what_runs_counts_until_it_ends(picker):
    publish(picker, grant("t", "k", concurrent_requests=1))
    assert isinstance(ask(picker, "a", headers=key("k")), Destination)
    assert refusal(ask(picker, "b", headers=key("k"))) == (429, "rate_limit_exceeded")
    picker.request_ended("b", status=429, client_left=False)
    assert refusal(ask(picker, "c", headers=key("k"))) == (429, "rate_limit_exceeded")
    picker.request_ended("a", status=200, client_left=False)
    assert isinstance(ask(picker, "d", headers=key("k")), Destination)


def test_an_end_that_comes_before_its_beginning_counts(picker):
    publish(picker, grant("t", "k", concurrent_requests=1))
    picker.request_ended("a", status=0, client_left=True)
    ask(picker, "a", headers=key("k"))
    assert isinstance(ask(picker, "b", headers=key("k")), Destination)


def test_gateways_keep_one_limit_together(clock):
    shared = []
    one, two = made(clock, publish=shared.append), made(clock, publish=shared.append)
    for picker in (one, two):
        publish(picker, grant("t", "k", requests_per_minute=3, tokens_per_minute=600), grant("free", "f"))
    ask(one, "a", headers=key("k"))
    ask(one, "b", headers=key("f"))
    used = [event for event in shared if isinstance(event, TenantUse)]
    assert [(use.tenant, use.requests) for use in used] == [("default/t", 1), ("default/free", 1)]
    two.tenants.used_elsewhere("one", used[0])
    two.tenants.used_elsewhere("one", TenantUse(tenant="default/t", tokens=700.0))
    two.tenants.used_elsewhere("one", TenantUse(tenant="default/unknown", requests=100))
    refused = ask(two, "c", headers=key("k"))
    assert refusal(refused) == (429, "rate_limit_exceeded")
    assert refused.headers["x-ratelimit-remaining-requests"] == "2"
    two.tenants.used_elsewhere("one", TenantUse(tenant="default/t", tokens=-700.0))
    assert isinstance(ask(two, "d", headers=key("k")), Destination)


def test_what_other_gateways_count_of_a_tenant_counts_also_where_it_is_read_of_later(clock):
    picker = made(clock)
    picker.tenants.used_elsewhere("one", TenantUse(tenant="default/t", requests=9))
    clock.now += 60.0
    picker.tenants.used_elsewhere("one", TenantUse(tenant="default/t", requests=2))
    publish(picker, grant("other", "o"))
    clock.now += 1.0
    publish(picker, grant("t", "k", requests_per_minute=3))
    publish(picker, grant("t", "k", requests_per_minute=3), grant("other", "o"))
    assert ask(picker, "a", headers=key("k")).headers["x-ratelimit-remaining-requests"] == "0"
    assert refusal(ask(picker, "b", headers=key("k"))) == (429, "rate_limit_exceeded")


def test_a_new_envoy_has_nothing_of_what_runs(picker, clock):
    publish(picker, grant("t", "k", concurrent_requests=1))
    ask(picker, "a", headers=key("k"))
    clock.now += 10
    picker.ends.envoy_restarted(before_s=clock.now)
    assert isinstance(ask(picker, "b", headers=key("k")), Destination)


def test_a_request_that_comes_again_from_the_relay_counts_once(clock):
    picker = made(clock, limits=HoldLimits(max_wait_s=60.0))
    publish(picker, grant("t", "k", requests_per_minute=10))
    picker.places()
    headers = {**key("k"), names.HEADER_RESUME: "1"}
    outer = ask(picker, "outer", headers=headers, stream=True)
    assert (outer.cluster, outer.headers["x-ratelimit-remaining-requests"]) == ("relay", "9")
    inner = ask(picker, "inner", headers={**key("k"), names.HEADER_RELAYED: "outer"}, stream=True)
    assert (inner.cluster, dict(inner.headers)) == ("default.chat", {})
    assert ask(picker, "next", headers=key("k")).headers["x-ratelimit-remaining-requests"] == "8"


def test_replicas_that_trust_a_header_get_the_tenants_name_in_it(clock):
    picker = made(clock, tenant_header="X-Tenant")
    publish(picker, grant("team", "k"))
    destination = ask(picker, headers={**key("k"), "x-tenant": "somebody-else"})
    assert destination.headers["x-tenant"] == "team"


@pytest.mark.parametrize(
    ("own", "of_body", "sent"),
    [
        ({}, None, "5"),
        ({"x-kvasir-priority": "-9"}, None, "5"),
        ({"x-kvasir-priority": "7"}, None, "7"),
        ({"x-kvasir-priority": "7"}, 20, "7"),
        ({"x-kvasir-priority": "urgent"}, 20, "20"),
        ({}, 20, "20"),
        ({}, -20, "5"),
        ({}, "20", "5"),
    ],
)
@pytest.mark.parametrize("model", ["chat", "default/routed"])
def test_a_tenants_priority_is_the_most_urgent_that_it_may_have(picker, own, of_body, sent, model):
    route = model_route("routed", rules=[{"targets": [{"service": "chat"}]}])
    picker.table = table([service("chat")], [pod("chat", "one")], [route])
    publish(picker, grant("t", "k", priority=5))
    assert (
        ask(picker, model=model, headers={**key("k"), **own}, priority=of_body).headers[names.HEADER_PRIORITY] == sent
    )


@pytest.mark.parametrize("header", ["", "x-tenant"])
def test_prefixes_are_salted_as_the_replica_does(picker, header):
    """By the name that the gateway sets where the replica trusts it, else by the key that it passes on."""
    publish(picker, grant("team", "k"))
    picker.table = table([service("chat") | {"spec": {"model": {}, "runtime": {"tenantHeader": header}}}], [])
    routed = picker.table.service("chat")
    caller = picker.tenants.caller(routed, key("k"))
    state = RuntimeState(phase="ready", model="m", prefixes=PrefixDigest(by_key=not header, by_header=header))
    shaping = {"messages": [{"role": "user", "content": "x" * 2000}]}
    seen = RequestPrefix(ParsedBody(model="chat", shaping=shaping), CHATS, caller.headers, body_bytes=1)
    salt = tenants.salt_of_name("team") if header else tenants.salt_of_key(b"k")
    assert seen.route_hashes(state)
    assert seen._tenant_salt(state) == salt


def test_requests_of_all_keys_of_a_tenant_wait_as_one(clock):
    picker = made(clock, limits=HoldLimits(max_wait_s=60.0), pods=())
    publish(picker, grant("t", "k", "l"), grant("u", "m"))
    held = [ask(picker, name, headers=key(value)) for name, value in (("a", "k"), ("b", "l"), ("c", "m"))]
    assert all(isinstance(one, HeldRequest) for one in held)
    assert len({one.tenant for one in held}) == 2


def test_a_request_whose_end_was_lost_counts_until_its_time_is_over(picker, clock):
    """As one that the relay had, whose first id no log of Envoy brings after the picker was away."""
    publish(picker, grant("t", "k", concurrent_requests=1))
    ask(picker, "lost", headers=key("k"))
    clock.now += 3599
    assert refusal(ask(picker, "b", headers=key("k"))) == (429, "rate_limit_exceeded")
    clock.now += 2
    assert isinstance(ask(picker, "c", headers=key("k")), Destination)
