"""Which requests go to an external backend, by its file, its health and who sends them."""

import dataclasses

import pytest

from fakes.clock import Now
from fakes.gateway import NO_HOLD, grant, model_route, service, table
from kvasir_api import names
from kvasir_api.tenant_keys import TenantKeys
from kvasir_gateway.backends import BackendGrant, RelayReport
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.hold_queue import HeldRequest, HoldLimits
from kvasir_gateway.picker.destination import Destination, RoutableRequest
from kvasir_gateway.picker.external_backends import ExternalBackends
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_parser import ImmediateResponse, ParsedBody, RequestBounds
from kvasir_gateway.picker.request_prefix import RequestPrefix

CHAT = "/v1/chat/completions"
ROUTE = model_route(
    "r",
    rules=[{"targets": [{"service": "one"}]}],
    fallbacks=[{"service": "two"}],
    backends=[{"name": "one", "model": "m-1"}, {"name": "two", "model": "m-2"}],
)
TABLE = table([service("two")], [], [ROUTE])
ONE, TWO = TABLE.backends["default.r/one"], TABLE.backends["default.r/two"]
BOTH = RelayReport(backends=tuple(BackendGrant(name=name, namespaces=("*",)) for name in ("one", "two")))
REQUEST = RoutableRequest(
    id="i", path=CHAT, prefix=RequestPrefix(ParsedBody(model="r"), CHAT, {}, body_bytes=1), until_s=60.0, relayed="o"
)


def attempt(found, request=REQUEST, *, checked=True, listens=True, to=ONE):
    return found.attempt(to, request, checked=checked, listens=listens)


def known(**fields):
    found = ExternalBackends()
    found.take(RelayReport(backends=(BackendGrant(name="one", **{"namespaces": ("default",)} | fields),)))
    return found


@pytest.mark.parametrize(
    ("fields", "request_", "more", "may"),
    [
        ({}, {}, {}, True),
        ({"namespaces": ("other",)}, {}, {}, False),
        ({}, {}, {"checked": False}, False),
        ({"anonymous": True}, {}, {"checked": False}, True),
        ({}, {"path": "/v1/responses"}, {}, False),
        ({}, {"path": "/v1/embeddings"}, {}, True),
        ({}, {"is_ours": False}, {}, False),
        ({}, {"tried": frozenset({"default/r/one"})}, {}, False),
        ({}, {"tried": frozenset({"default/r/two"})}, {}, True),
        ({}, {"relayed": ""}, {"listens": False}, False),
        ({}, {"relayed": ""}, {"listens": True}, True),
        ({}, {}, {"listens": False}, True),
    ],
)
def test_a_request_goes_to_a_backend_that_may_have_it(fields, request_, more, may):
    routed, why = attempt(known(**fields), dataclasses.replace(REQUEST, **request_), **more)
    assert (routed is not None, why) == (may, None if may else "Stalled")


def test_a_backend_that_the_relay_does_not_have_gets_nothing():
    assert attempt(ExternalBackends()) == (None, "Stalled")
    found = known()
    found.take(RelayReport())
    assert attempt(found) == (None, "Stalled")


@pytest.mark.parametrize(
    ("resting", "rests"),
    [((), False), (("default/r/one",), True), (("other/r/one", "default/other/one", "default/r/two"), False)],
)
def test_one_that_rests_under_this_route_is_the_last_choice(resting, rests):
    found = ExternalBackends()
    found.take(RelayReport(backends=BOTH.backends, resting=resting))
    routed, why = attempt(found)
    assert routed is not None
    assert (why == "Stalled") is rests


def new_picker(limits):
    return Picker(
        metrics=GatewayMetrics(),
        clock=Now(),
        draw=lambda: 0,
        policy=ChoicePolicy(),
        bounds=RequestBounds(max_body_bytes=1000),
        limits=limits,
    )


@pytest.fixture
def picker():
    made = new_picker(NO_HOLD)
    made.table = TABLE
    made.backends.take(BOTH)
    made.tenants.take(TenantKeys(tenants=(grant("t", "k"), grant("u", "l", services=("two",)))))
    made.places()
    return made


def ask(picker, name, key="k", **headers):
    said = {"authorization": f"Bearer {key}", **headers}
    return picker.pick(b'{"model": "default/r", "stream": true}', name, CHAT, said)


def test_a_request_for_a_backend_passes_the_relay_and_counts_when_it_comes_from_there(picker):
    outer = ask(picker, "outer")
    assert (outer.cluster, outer.streams, picker.inflight.counts("default.r/one").inflight) == ("relay", True, 0)
    inner = ask(picker, "inner", **{names.HEADER_RELAYED: "outer"})
    assert isinstance(inner, Destination)
    assert (inner.cluster, inner.service, inner.body, inner.fallback) == ("backends", "default/r/one", None, None)
    assert inner.headers == {names.HEADER_BACKEND: "one", names.HEADER_BACKEND_MODEL: "m-1"}
    assert picker.inflight.counts("default.r/one").inflight == 1
    picker.request_ended("inner", status=503, client_left=False)
    assert picker.inflight.counts("default.r/one").inflight == 0
    second = ask(picker, "second", **{names.HEADER_RELAYED: "outer", names.HEADER_TRIED: "default/r/one"})
    assert (second.service, second.fallback) == ("default/r/two", "Stalled")
    both = "default/r/one,default/r/two"
    last = ask(picker, "last", **{names.HEADER_RELAYED: "outer", names.HEADER_TRIED: both})
    assert isinstance(last, ImmediateResponse)
    assert last.status == 503


def test_a_backend_comes_before_a_service_of_its_name_and_a_tenant_needs_its_name(picker):
    found = ask(picker, "a", key="l", **{names.HEADER_RELAYED: "o"})
    assert isinstance(found, ImmediateResponse), "the only target is not this tenant's"
    assert found.status == 404
    assert picker.table.by_key("default.r/two").backend == "two"
    assert picker.table.by_key("default.two").backend == ""


def test_other_proxies_have_no_backends(picker):
    headers = {"authorization": "Bearer k"}
    found = picker.pick_now(b'{"model": "default/r"}', "x", CHAT, headers, within=None)
    assert isinstance(found, ImmediateResponse)
    assert found.status == 503


def test_one_that_rests_is_tried_where_nothing_else_can_answer(picker):
    both = ("default/r/one", "default/r/two")
    picker.backends.take(RelayReport(backends=BOTH.backends, resting=both))
    assert ask(picker, "a", **{names.HEADER_RELAYED: "o"}).service == "default/r/one"
    picker.backends.take(RelayReport(backends=BOTH.backends[1:], resting=both))
    found = ask(picker, "b", **{names.HEADER_RELAYED: "o"})
    assert (found.service, found.fallback) == ("default/r/two", "Stalled"), "the target is gone"


def test_one_that_failed_under_a_waiting_request_may_have_those_behind_it():
    waiting = new_picker(HoldLimits(max_wait_s=60))
    route = {"rules": [{"targets": [{"service": "s"}]}], "fallbacks": [{"service": "one"}]}
    waiting.table = table([service("s")], [], [model_route("r", **route, backends=[{"name": "one", "model": "m"}])])
    body, relayed = b'{"model": "default/r"}', {names.HEADER_RELAYED: "o"}
    for name, path, headers in (
        ("tried", CHAT, relayed | {names.HEADER_TRIED: "default/r/one"}),
        ("of another path", "/v1/messages", relayed),
        ("behind", CHAT, relayed),
    ):
        assert isinstance(waiting.pick(body, name, path, headers), HeldRequest)
    waiting.backends.take(RelayReport(backends=(BackendGrant(name="one", namespaces=("*",), anonymous=True),)))
    assert [(name, found.cluster) for name, found in waiting.release()] == [("behind", "backends")]
