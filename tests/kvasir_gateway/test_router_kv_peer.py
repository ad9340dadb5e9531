"""Which replica is named to the chosen one as the holder of a prompt's blocks."""

import msgspec
import pytest

from fakes.gateway import pod, service, table
from fakes.routing import ONE, TEXT, TWO, Prompt, Rig
from kvasir_gateway.routing_table import READING_MAX_AGE_S, StateReading


@pytest.fixture
def rig():
    made = Rig()
    made.read()
    return made


def peer_of(rig, prompt=None, **ports):
    """Read both pods: the first holds TEXT and is busy, so that the second is chosen; what is named to it."""
    rig.read(TEXT, kv_transfer_port=8002)
    for address, fields in ports.items():
        at = {"one": ONE, "two": TWO}[address]
        state = msgspec.structs.replace(rig.readings[at].state, **fields)
        rig.readings[at] = StateReading(state=state, at_s=rig.now)
    routed = rig.router.choose(rig.service, prompt or Prompt(), rig.readings, now_s=rig.now)
    assert routed.choice.addresses[0] == TWO
    return routed.kv_peer


BUSY = {"waiting": 50, "waiting_uncached_tokens": 200_000}


def test_the_holder_of_a_prompt_is_named_to_a_pod_that_lacks_it(rig):
    assert peer_of(rig, one=BUSY) == f"10.0.0.1:8002;bytes={40 * 256}"
    assert peer_of(rig, Prompt(TEXT[:10]), one=BUSY) == "10.0.0.1:8002;bytes=2560"
    assert peer_of(rig, Prompt((*TEXT[:5], b"another!")), one=BUSY) == "10.0.0.1:8002;bytes=1280"


def test_a_holder_that_drains_is_named_too(rig):
    assert peer_of(rig, one={"phase": "draining"}) == f"10.0.0.1:8002;bytes={40 * 256}"


@pytest.mark.parametrize(
    "ports",
    [
        {"one": {"kv_transfer_port": 0}},
        {"two": {"kv_transfer_port": 0}},
        {"one": {"kv_transfer_port": 99_999}},
        {"one": {"kv_transfer_port": -1}},
    ],
)
def test_none_is_named_where_blocks_are_not_exchanged(rig, ports):
    fields = {"one": {**BUSY, **ports.get("one", {})}, **({"two": ports["two"]} if "two" in ports else {})}
    assert peer_of(rig, **fields) == ""


def test_none_is_named_for_a_text_that_none_holds_or_a_little_of_it(rig):
    assert peer_of(rig, Prompt((b"another!",) * 10), one=BUSY) == ""
    assert peer_of(rig, Prompt((*TEXT[:1], b"another!")), one=BUSY) == ""


def test_what_is_only_on_its_way_to_a_pod_cannot_be_fetched_there(rig):
    rig.read((), kv_transfer_port=8002)
    first, _ = rig.send()
    at = first.addresses[0]
    rig.readings[at] = StateReading(state=msgspec.structs.replace(rig.readings[at].state, **BUSY), at_s=rig.now)
    routed = rig.router.choose(rig.service, Prompt(), rig.readings, now_s=rig.now)
    assert routed.choice.addresses[0] != at
    assert routed.kv_peer == ""


def test_a_holder_of_another_revision_is_not_named(rig):
    pods = [pod("s", "one", ip="10.0.0.1", revision="old"), pod("s", "two", ip="10.0.0.2", revision="new")]
    rig.service = table([service("s")], pods).services[0]
    assert peer_of(rig, one=BUSY) == ""


def test_a_holder_that_is_being_deleted_is_named_too(rig):
    pods = [pod("s", "one", ip="10.0.0.1", deleted=True), pod("s", "two", ip="10.0.0.2")]
    rig.service = table([service("s")], pods).services[0]
    assert peer_of(rig, one={"phase": "draining"}) == f"10.0.0.1:8002;bytes={40 * 256}"


@pytest.mark.parametrize(
    ("age_s", "phase", "is_named"),
    [
        (READING_MAX_AGE_S, "ready", True),
        (READING_MAX_AGE_S + 0.1, "ready", False),
        (READING_MAX_AGE_S + 0.1, "draining", False),
        (0.0, "starting", False),
    ],
)
def test_a_holder_that_has_not_answered_lately_or_does_not_serve_is_not_named(rig, age_s, phase, is_named):
    """A node that died leaves a pod that is Ready for a while."""
    rig.read(TEXT, kv_transfer_port=8002)
    state = msgspec.structs.replace(rig.readings[ONE].state, phase=phase, **BUSY)
    rig.now += age_s
    rig.readings = {
        ONE: StateReading(state=state, at_s=rig.now - age_s),
        TWO: StateReading(state=rig.readings[TWO].state, at_s=rig.now),
    }
    routed = rig.router.choose(rig.service, Prompt(), rig.readings, now_s=rig.now)
    assert routed.choice.addresses[0] == TWO
    assert bool(routed.kv_peer) == is_named
