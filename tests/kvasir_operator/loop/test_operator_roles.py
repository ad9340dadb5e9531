"""Roles under the whole operator: pods get and lose them, another pod takes the role of a lost one, events say so."""

import pytest

from fakes.manifests import pod
from fakes.operator_bench import Bench
from kvasir_api import names
from kvasir_api.state import MeasuredRates, RequestTotals
from kvasir_kube.kinds import POD

SPEC = {"replicas": 3, "runtime": {"kvHostBytes": 1 << 30}}
ROLES = {"prefill": {"minReplicas": 1, "maxReplicas": 2}}
ABLE = {"kv_prefill": True, "rates": MeasuredRates(prefill_tokens_per_s=1000.0)}
LEAST = "prompts that come and wait require 0; spec.roles.prefill.minReplicas is 1"


def having(bench):
    """Pods with the role."""
    pods = bench.cluster.objects[POD.plural].items()
    notes = {name: found["metadata"].get("annotations") or {} for (_, name), found in pods}
    return {name for name, one in notes.items() if one.get(names.ANNOTATION_SERVING_ROLE) == names.SERVING_ROLE_PREFILL}


@pytest.fixture
async def bench():
    made = Bench()
    made.operator = made.started(signs_calls=True)
    await made.put_service(**SPEC, roles=ROLES)
    await made.turn()
    await made.put_pods(3, **ABLE)
    await made.turn()
    return made


async def test_one_of_three_gets_the_role_and_keeps_it(bench):
    before = having(bench)
    assert len(before) == 1
    bench.writes()
    for _ in range(5):
        await bench.turn()
    assert (having(bench), ("merge", "pods") in bench.writes()) == (before, False)
    assert bench.status()["roles"] == {"prefill": 1, "message": LEAST}
    assert bench.events("RoleChanged") == [f"{before.pop()}: it computes prompts for the others from now on"]


async def test_another_one_follows_one_that_is_lost(bench):
    (lost,) = having(bench)
    await bench.cluster.delete(POD, "default", lost)
    await bench.turn()
    assert len(having(bench)) == 1
    (found,) = having(bench)
    await bench.cluster.delete(POD, "default", found)
    await bench.turn()
    assert having(bench) == set(), "the last one is for answers"
    await bench.turn()
    assert bench.status()["roles"]["prefill"] == 0


async def test_prompts_that_wait_take_one_more_and_a_lull_gives_it_back(bench):
    for number in range(3):
        bench.say(number, **ABLE, waiting=2, waiting_uncached_tokens=9_000)
    await bench.turn()
    assert len(having(bench)) == 2
    for number in range(3):
        bench.say(number, **ABLE, totals=RequestTotals(arrivals=1, completions=1))
    await bench.turn(60)
    assert len(having(bench)) == 2
    for _ in range(6):
        await bench.turn(60)
    assert len(having(bench)) == 1
    assert [note.split(": ")[1] for note in bench.events("RoleChanged")] == [
        *["it computes prompts for the others from now on"] * 2,
        "it no longer computes prompts for the others",
    ]


async def test_without_roles_in_the_spec_no_pod_keeps_one(bench):
    await bench.put_service(**SPEC)
    await bench.turn()
    assert having(bench) == set()
    await bench.turn()
    assert "roles" not in bench.status()
    revision = bench.cluster.stored(POD, "default", "p0")["metadata"]["labels"][names.LABEL_REVISION]
    notes = {names.ANNOTATION_SERVING_ROLE: names.SERVING_ROLE_PREFILL}
    await bench.cluster.put(POD, pod("p0", revision=revision, annotations=notes, ip="10.0.0.1"))
    await bench.turn()
    assert having(bench) == set()


async def test_replicas_that_hand_nothing_over_have_no_role(bench):
    for number in range(3):
        bench.say(number)
    await bench.turn()
    assert having(bench) == set()


async def test_an_operator_that_takes_over_writes_nothing(bench):
    before = having(bench)
    await bench.turn()
    bench.writes()
    bench.operator = bench.started(signs_calls=True)
    await bench.turn()
    await bench.turn()
    assert (having(bench), bench.writes()) == (before, [])


async def test_a_spec_without_a_second_tier_is_refused_by_its_path(bench):
    before = having(bench)
    await bench.put_service(replicas=3, roles=ROLES)
    await bench.turn()
    assert bench.reason() == "InvalidSpec"
    assert having(bench) == before, "what runs goes on"
