"""What the replica does that is furthest on its way, and how requests of the relay wait for it."""

import pytest

from bench import held_eta
from fakes.gateway import pod, service, table
from kvasir_api.state import RuntimeState
from kvasir_gateway.held_places import HeldPlace
from kvasir_gateway.hold_queue import HeldRequest, HoldLimits, HoldQueue
from kvasir_gateway.picker.destination import RoutableRequest
from kvasir_gateway.picker.request_parser import ParsedBody
from kvasir_gateway.picker.request_prefix import RequestPrefix
from kvasir_gateway.picker.waiting_places import wait_phase, waiting_at_replicas, waiting_places
from kvasir_gateway.routing_table import StateReading
from kvasir_gateway.wake_forecast import TurnForecast, WakeForecast

CHAT = "/v1/chat/completions"


def reading(**fields):
    return {"10.0.0.1:8000": StateReading(state=RuntimeState(**fields), at_s=100.0)}


@pytest.mark.parametrize(
    ("fields", "readings", "phase", "eta_s"),
    [
        ({"ip": None, "phase": "Pending"}, {}, "schedule", -1.0),
        ({"ready": False}, {}, "image", -1.0),
        ({"ready": False}, reading(phase="loading", eta_s=8.0), "weights", 8.0),
        ({"ready": False}, reading(phase="warming"), "warm", -1.0),
        ({}, reading(phase="ready"), "queue", -1.0),
        ({"draining": True}, reading(phase="draining"), "scale", -1.0),
    ],
)
def test_the_phase_is_that_of_the_replica_that_is_furthest(fields, readings, phase, eta_s):
    (found,) = table([service("s")], [pod("s", "one", **{"ip": "10.0.0.1"} | fields)]).services
    assert wait_phase(found, readings) == (phase, eta_s)


def test_only_requests_of_the_relay_have_a_place_among_all_that_wait():
    services, held = table([service("s"), service("idle")], []).services, HoldQueue(HoldLimits())
    waiting = {}
    for number, relayed in enumerate(("", "a", "b")):
        one = str(number)
        prefix = RequestPrefix(ParsedBody(model="s"), CHAT, {}, body_bytes=1)
        waiting[one] = RoutableRequest(id=one, path=CHAT, prefix=prefix, until_s=60.0, relayed=relayed)
        held.add(
            HeldRequest(id=one, service="default.s", tenant=b"t", num_bytes=1, since_s=float(number), until_s=60.0)
        )
    assert waiting_places(services, held, waiting, {}, wakes=WakeForecast(), turns=TurnForecast(), now_s=5.0) == {
        "a": HeldPlace(place=2, of=3, phase="scale"),
        "b": HeldPlace(place=3, of=3, phase="scale"),
    }


@pytest.mark.parametrize(("said", "ahead"), [(3, 3), (-(10**9), 0), (10**18, 100_000)])
def test_what_waits_at_replicas_comes_first_as_far_as_it_can_be_true(said, ahead):
    pods = [pod("s", "one", ip="10.0.0.1"), pod("s", "two", ip="10.0.0.2"), pod("s", "left", draining=True)]
    (found,) = table([service("s")], pods).services
    assert waiting_at_replicas(found, reading(phase="ready", waiting=said)) == ahead


def test_seconds_that_held_requests_are_told_count_what_waits_at_replicas():
    """A quarter were missing, of what four replicas had in their queues."""
    (large,) = (overload for overload in held_eta.OVERLOADS if overload.name == "large")
    assert held_eta.error_p50(large, seed=1) <= 0.12
