"""The replica that is chosen gets the name of another one that holds the prompt, and no client can name one."""

import json

import pytest

from fakes.clock import Now
from fakes.gateway import NO_HOLD, accepted, pod, service, table
from kvasir_api import hashes, names
from kvasir_api.prefix_digest import WHOLE, PrefixSet
from kvasir_api.state import PrefixDigest, RuntimeState
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.picker.metrics import GatewayMetrics
from kvasir_gateway.picker.picker import Picker
from kvasir_gateway.picker.request_parser import RequestBounds
from kvasir_gateway.routing_table import StateReading

PROMPT = "the engine reads a plan " * 100
HOLDER, OTHER = "10.0.0.1:8000", "10.0.0.2:8000"


@pytest.mark.parametrize(("port", "want"), [(8002, {names.HEADER_KV_PEER: "10.0.0.1:8002;bytes=2304"}), (0, {})])
def test_the_destination_has_the_header(port, want):
    made = Picker(
        metrics=GatewayMetrics(),
        clock=Now(),
        draw=lambda: 0,
        policy=ChoicePolicy(),
        bounds=RequestBounds(max_body_bytes=10_000),
        limits=NO_HOLD,
    )
    made.table = table([service("s", model="m")], [pod("s", "one", ip="10.0.0.1"), pod("s", "two", ip="10.0.0.2")])
    made.accepted_clusters = accepted(made.table)
    held = PrefixSet(hashes.route_hashes(PROMPT, model="m"))
    followed = made.router.followed([HOLDER, OTHER])
    for address, members, waiting in ((HOLDER, held, 10_000_000), (OTHER, PrefixSet(()), 0)):
        told = PrefixDigest(
            entries=len(members.hashes), checksum=members.checksum, after=WHOLE, added=b"".join(members.hashes)
        )
        state = RuntimeState(
            phase="ready", model="m", waiting_uncached_tokens=waiting, prefixes=told, kv_transfer_port=port
        )
        followed[address].take("i", told)
        made.readings[address] = StateReading(state=state, at_s=100.0)
    body = json.dumps({"model": "m", "prompt": PROMPT}).encode()
    destination = made.pick(body, "t", "/v1/completions", {names.HEADER_KV_PEER: "6.6.6.6:1;bytes=1"})
    assert destination.addresses[0] == OTHER
    assert destination.headers == want
