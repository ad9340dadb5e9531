"""A picker with a service of two replicas, whose readings tests write, and one without any."""

import json
from typing import Any

from msgspec import structs

from fakes.clock import Now
from fakes.gateway import accepted, model_route, pod, service, table
from kvasir_api.state import QueueBounds, RuntimeState
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.hold_queue import HeldRequest, HoldLimits
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_parser import RequestBounds
from kvasir_gateway.routing_table import StateReading

ONE, TWO = "10.0.0.1:8000", "10.0.0.2:8000"
PATH = "/v1/completions"
FULL = RuntimeState(phase="ready", running=2, waiting=2, max_sequences=2, queue=QueueBounds(requests=2))
"""Two run and two wait, as many as may."""
ROUTE = model_route(
    "r", rules=[{"targets": [{"service": "s"}]}], fallbacks=[{"service": "asleep", "when": ["Saturated"]}]
)


def made(clock: Now, **limits: Any) -> Picker:
    """A picker that has no readings yet."""
    picker = Picker(
        metrics=GatewayMetrics(),
        clock=clock,
        draw=lambda: 0,
        policy=ChoicePolicy(),
        bounds=RequestBounds(max_body_bytes=1000, timeout_s=600.0),
        limits=HoldLimits(**{"max_requests": 6, "max_wait_s": 60.0} | limits),
    )
    services = [service("s"), service("asleep")]
    pods = [pod("s", "one", ip="10.0.0.1"), pod("s", "two", ip="10.0.0.2")]
    picker.table = table(services, pods, [ROUTE])
    picker.accepted_clusters = accepted(picker.table)
    return picker


def report(picker: Picker, clock: Now, **states: RuntimeState) -> None:
    """Replicas report, later than all that was sent before and earlier than what comes."""
    clock.now += 0.05
    found = {ONE: states["one"], TWO: states["two"]}
    picker.readings = {address: StateReading(state=state, at_s=clock.now) for address, state in found.items()}
    picker.router.take_readings(found, began_s=clock.now)
    clock.now += 0.05


def pick(picker: Picker, name: str, model: str = "s", prompt: str = "", **headers: str) -> Any:
    """What becomes of a request. headers: with _ for -."""
    body = json.dumps({"model": model, "prompt": prompt}).encode()
    return picker.pick(body, name, PATH, {key.replace("_", "-"): value for key, value in headers.items()})


def hold(picker: Picker, name: str, model: str = "s", prompt: str = "", **headers: str) -> HeldRequest:
    """A request that has to wait."""
    outcome = pick(picker, name, model, prompt, **headers)
    assert isinstance(outcome, HeldRequest)
    return outcome


def with_room(number: int) -> RuntimeState:
    """A state in which so many more may wait."""
    return structs.replace(FULL, waiting=2 - number)


def released(picker: Picker) -> list[tuple[str, str]]:
    """Held requests that go now, and where to."""
    outcomes: list[tuple[str, Any]] = picker.release()
    return [(name, going.addresses[0]) for name, going in outcomes]
