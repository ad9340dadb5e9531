"""Roles of replicas: who gets requests, and who computes their prompts."""

import msgspec
import pytest

from fakes.gateway import pod, service, table
from fakes.routing import ONE, TEXT, TWO, Prompt, Rig
from kvasir_api import names
from kvasir_api.state import KvHostState, KvState
from kvasir_gateway import choice_records
from kvasir_gateway.choice_records import ChoiceRecords
from kvasir_gateway.choose import ChoicePolicy
from kvasir_gateway.routing_table import StateReading

PREFILL = {names.ANNOTATION_SERVING_ROLE: names.SERVING_ROLE_PREFILL}
PORT = {"kv_transfer_port": 8002, "kv_prefill": True}
DECODES = {"running": 30, "max_sequences": 64}


@pytest.fixture
def rig():
    """The second pod computes prompts for the first."""
    made = Rig()
    pods = [pod("s", "one", ip="10.0.0.1"), pod("s", "two", ip="10.0.0.2", annotations=PREFILL)]
    made.service = table([service("s")], pods).services[0]
    made.read(**PORT)
    state(made, ONE, **DECODES)
    return made


def state(rig, address, **fields):
    changed = msgspec.structs.replace(rig.readings[address].state, **fields)
    rig.readings[address] = StateReading(state=changed, at_s=rig.now)


def routed(rig, prompt=None):
    return rig.router.choose(rig.service, prompt or Prompt(), rig.readings, now_s=rig.now)


def test_a_request_goes_to_the_replica_that_decodes_with_the_one_that_computes_its_prompt(rig):
    found = routed(rig)
    assert found.choice.addresses == (ONE,)
    assert (found.kv_peer, found.inputs.handed.address) == ("10.0.0.2:8002;prefill", TWO)
    assert found.choice.uncached_tokens == 1.0


def test_a_prompt_stays_at_a_replica_that_decodes_nothing(rig):
    state(rig, ONE, running=0)
    found = routed(rig)
    assert (found.choice.addresses, found.kv_peer, found.inputs.handed.pays) == ((ONE,), "", False)


@pytest.mark.parametrize("of", [ONE, TWO])
@pytest.mark.parametrize("lacks", [{"kv_prefill": False}, {"kv_transfer_port": 0}, {"kv_transfer_port": 70_000}])
def test_none_is_handed_over_where_one_of_both_cannot(rig, of, lacks):
    state(rig, of, **lacks)
    assert routed(rig).kv_peer == ""


@pytest.mark.parametrize("phase", ["draining", "starting"])
def test_one_that_leaves_or_starts_gets_no_prompts(rig, phase):
    state(rig, TWO, phase=phase)
    assert routed(rig).kv_peer == ""


def test_a_replica_for_prompts_takes_requests_where_no_other_one_serves(rig):
    pods = [pod("s", "two", ip="10.0.0.2", annotations=PREFILL)]
    rig.service = table([service("s")], pods).services[0]
    found = routed(rig)
    assert (found.choice.addresses, found.kv_peer) == ((TWO,), "")


def test_replicas_without_roles_hand_over_nothing(rig):
    pods = [pod("s", "one", ip="10.0.0.1"), pod("s", "two", ip="10.0.0.2")]
    rig.service = table([service("s")], pods).services[0]
    assert (routed(rig).choice.addresses[0], routed(rig).inputs.handed) == (TWO, None)


def test_a_replica_of_another_revision_computes_no_prompt(rig):
    """It would refuse: during a rollout each revision is by itself."""
    pods = [
        pod("s", "one", ip="10.0.0.1", revision="new"),
        pod("s", "two", ip="10.0.0.2", revision="old", annotations=PREFILL),
    ]
    rig.service = table([service("s")], pods).services[0]
    assert (routed(rig).choice.addresses, routed(rig).kv_peer) == ((ONE,), "")


def test_prompts_that_were_just_handed_over_count_there(rig):
    """Twelve prompts of 2,580 tokens are half a minute of work: more than the answers that wait would lose."""
    for number in range(60):
        found = routed(rig, Prompt((number.to_bytes(8),) * 40))
        if not found.inputs.handed.pays:
            break
        rig.now += 0.001
        rig.router.forward(str(number), rig.service, ONE, found, now_s=rig.now)
    assert 2 < number < 59


def test_blocks_that_another_one_holds_are_fetched_there_and_what_moves_slowly_stays(rig):
    kv = KvState(capacity_tokens=1000, capacity_bytes=1_000_000_000)
    state(rig, ONE, kv=kv, kv_host=KvHostState(fetch_bytes_per_s=1e7))
    assert routed(rig).kv_peer == ""
    state(rig, ONE, kv=kv, kv_host=KvHostState(fetch_bytes_per_s=-5.0))
    assert routed(rig).kv_peer.endswith(";prefill"), "a rate that cannot be is none"


def test_a_prompt_that_the_replica_holds_stays(rig):
    rig.read(TEXT, **PORT)
    state(rig, ONE, **DECODES)
    assert routed(rig).kv_peer == ""


def test_the_explanation_of_a_choice_names_who_computes_the_prompt(rig):
    found = routed(rig)
    records = ChoiceRecords(ChoicePolicy())
    records.add("r", "s", found.inputs, at_s=0.0)
    record = choice_records.decode(choice_records.encode(records.find("r")))
    said = choice_records.explained(record)
    assert (
        f"  prompt computed by {TWO}, about 2580 tokens: 2.5800 s there and 0.0300 s to move it, in place of 4" in said
    )
    state(rig, ONE, running=0)
    records.add("r", "s", routed(rig).inputs, at_s=0.0)
    said = choice_records.explained(records.find("r"))
    assert f"  prompt stays; at {TWO} it would be computed, about 2580 tokens: 2.5800 s there and " in said
    rig.service = table([service("s")], [pod("s", "one", ip="10.0.0.1")]).services[0]
    records.add("r", "s", routed(rig).inputs, at_s=0.0)
    assert "  prompt " not in choice_records.explained(records.find("r")).replace("  prompt of about", "")


def test_a_replica_that_computes_prompts_comes_before_one_that_decodes_and_is_stalled(rig):
    pods = [
        pod("s", "one", ip="10.0.0.1", ready=False, started=True),
        pod("s", "two", ip="10.0.0.2", annotations=PREFILL),
    ]
    rig.service = table([service("s")], pods).services[0]
    state(rig, ONE, stalled_s=5.0)
    assert routed(rig).choice.addresses == (TWO,)
