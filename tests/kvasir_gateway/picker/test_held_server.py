"""How requests wait, as the relay reads it: place, phase and time, of those that came through it."""

import io

import aiohttp
import pytest

from fakes.clock import Now
from fakes.gateway import model_route, pod, service, table
from kvasir_api import names
from kvasir_gateway import backends, held_places
from kvasir_gateway.backends import BackendGrant, RelayReport
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.envoy.routes import RELAY
from kvasir_gateway.held_places import HELD_SOCKET, HeldPlace
from kvasir_gateway.hold_queue import HeldRequest
from kvasir_gateway.picker.destination import Destination
from kvasir_gateway.picker.held_server import HeldServer
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_parser import RequestBounds

STREAM = b'{"model": "s", "stream": true}'
CHAT = "/v1/chat/completions"


def goes_to_relay(answer):
    return isinstance(answer, Destination) and answer.cluster == RELAY


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
    )
    made.table = table([service("s")], [])
    return made


def relayed(picker, name, key="k"):
    headers = {names.HEADER_RELAYED: name, "authorization": f"Bearer {key}"}
    assert isinstance(picker.pick(STREAM, f"in-{name}", CHAT, headers), HeldRequest)


async def test_the_relay_reads_how_its_requests_wait(picker, tmp_path):
    server = HeldServer(picker, tmp_path)
    await server.start()
    picker.pick(b'{"model": "s"}', "own", CHAT, {"authorization": "Bearer k"})
    relayed(picker, "a")
    relayed(picker, "b", key="l")
    try:
        connector = aiohttp.UnixConnector(path=str(tmp_path / HELD_SOCKET))
        async with aiohttp.ClientSession(connector=connector) as session, session.get("http://picker/") as response:
            found = held_places.decode(await response.read())
    finally:
        await server.stop()
    assert found == {
        "a": HeldPlace(place=3, of=3, phase="scale"),
        "b": HeldPlace(place=2, of=3, phase="scale"),
    }
    assert not (tmp_path / HELD_SOCKET).exists()


async def test_the_relay_reports_external_backends_when_it_reads(picker, tmp_path):
    route = model_route("r", rules=[{"targets": [{"service": "one"}]}], backends=[{"name": "one", "model": "m"}])
    picker.table, server = table([], [], [route]), HeldServer(picker, tmp_path)
    await server.start()
    report = RelayReport(backends=(BackendGrant(name="one", namespaces=("default",), anonymous=True),))
    found = []
    try:
        connector = aiohttp.UnixConnector(path=str(tmp_path / HELD_SOCKET))
        async with aiohttp.ClientSession(connector=connector, base_url="http://picker") as session:
            for known in (RelayReport(), report):
                async with session.post("/", data=backends.encode(known)) as response:
                    assert held_places.decode(await response.read()) == {}
                found.append(goes_to_relay(picker.pick(b'{"model": "default/r"}', "x", CHAT)))
            async with session.post("/", data=b"[]") as response:
                assert response.status == 400
            many = tuple(f"default/r/{number:0>1500}" for number in range(backends.MOST_RESTING))
            async with session.post("/", data=io.BytesIO(backends.encode(RelayReport(resting=many)))) as response:
                assert response.status == 200, "a report has more than the usual limit of a body"
    finally:
        await server.stop()
    assert found == [False, True]


def test_the_second_start_is_expected_to_take_what_the_first_took(picker, clock):
    for wait_s in (30.0, 30.0):
        picker.table, picker.accepted_clusters = table([service("s")], []), frozenset()
        relayed(picker, "a")
        clock.now += 10.0
        found = picker.places()["a"].eta_s
        clock.now += wait_s - 10.0
        picker.table = table([service("s")], [pod("s", "one", ip="10.0.0.1")])
        picker.accepted_clusters = frozenset({"default.s"})
        assert len(picker.release()) == 1
        picker.places()
    assert found == 20.0


@pytest.mark.parametrize(
    ("body", "path", "headers", "is_relayed"),
    [
        (STREAM, CHAT, {}, True),
        (b'{"model": "s"}', CHAT, {}, False),
        (b'{"model": "s", "stream": 1}', CHAT, {}, False),
        (STREAM, "/api/chat", {}, False),
        (STREAM, "/v1/messages", {}, True),
        (STREAM, CHAT, {names.HEADER_RELAYED: "x"}, False),
    ],
)
def test_streams_that_wait_go_through_the_relay_once(picker, clock, body, path, headers, is_relayed):
    assert not goes_to_relay(picker.pick(body, "before", path, headers)), "no relay has been there yet"
    picker.places()
    assert goes_to_relay(picker.pick(body, "t", path, headers)) is is_relayed
    clock.now += 10.0
    assert not goes_to_relay(picker.pick(body, "after", path, headers)), "it is silent"


@pytest.mark.parametrize(
    ("headers", "is_relayed"),
    [
        ({}, False),
        ({names.HEADER_RESUME: "1"}, True),
        ({names.HEADER_RESUME: "0"}, False),
        ({names.HEADER_RESUME: "1", names.HEADER_CONTINUATION: "pieces"}, False),
        ({names.HEADER_RESUME: "1", names.HEADER_RELAYED: "x"}, False),
    ],
)
def test_streams_that_may_be_resumed_go_through_the_relay(picker, headers, is_relayed):
    picker.table = table([service("s")], [pod("s", "one", ip="10.0.0.1")])
    picker.accepted_clusters = frozenset({"default.s"})
    picker.places()
    assert goes_to_relay(picker.pick(STREAM, "t", CHAT, headers)) is is_relayed


@pytest.mark.parametrize(
    ("of_route", "headers", "is_resumed"),
    [
        (True, {}, True),
        (True, {names.HEADER_RESUME: "0"}, False),
        (True, {names.HEADER_CONTINUATION: "pieces"}, False),
        (False, {}, False),
        (False, {names.HEADER_RESUME: "1"}, True),
    ],
)
def test_a_route_lets_streams_be_resumed_unless_the_client_says_otherwise(picker, of_route, headers, is_resumed):
    """The relay reads the header alone; the client has set it, or the picker."""
    route = model_route("s", rules=[{"targets": [{"service": "s"}]}], resumeStreams=of_route)
    picker.table = table([service("s")], [pod("s", "one", ip="10.0.0.1")], [route])
    picker.accepted_clusters = frozenset({"default.s"})
    picker.places()
    found = picker.pick(STREAM, "t", CHAT, headers)
    assert goes_to_relay(found) is is_resumed
    assert found.headers.get(names.HEADER_RESUME) == ("1" if is_resumed else None)
    inner = picker.pick(STREAM, "inner", CHAT, {names.HEADER_RELAYED: "t"})
    assert (inner.cluster, inner.service) == ("default.s", "default/s"), "it goes to a replica from there"


def test_a_relayed_request_is_counted_once(picker):
    picker.places()
    assert goes_to_relay(picker.pick(STREAM, "outer", CHAT))
    relayed(picker, "outer")
    found = picker.state().services[0]
    assert (found.requests, found.held, found.inflight) == (1, 1, 0)
