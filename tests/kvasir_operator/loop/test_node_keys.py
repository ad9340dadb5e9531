"""Keys of nodes: made once for each service that needs one, kept, and taken for ours only where they are."""

import base64
import logging

import pytest

from fakes.clock import FakeClock
from fakes.cluster import FakeCluster
from fakes.manifests import service
from kvasir_api import names
from kvasir_kube.errors import ConflictError
from kvasir_kube.kinds import INFERENCE_SERVICE, SECRET
from kvasir_operator.loop.node_keys import READ_EVERY_S, NodeKeys
from kvasir_operator.loop.store import Store

GROUP = {"tensorParallelSize": 2, "nnodes": 2}


class Namespace:
    """Services of one namespace. keys: of an operator."""

    def __init__(self):
        self.cluster, self.clock, self.store = FakeCluster(), FakeClock(), Store()
        self.keys = self.started()

    def started(self):
        return NodeKeys(self.cluster, self.store, clock=self.clock)

    async def put(self, name, **spec):
        self.store.put(INFERENCE_SERVICE, await self.cluster.put(INFERENCE_SERVICE, service(name, **spec)))

    def stored(self):
        return self.cluster.stored(SECRET, "default", names.NODE_KEYS_SECRET)

    def entries(self):
        return {name: base64.b64decode(text) for name, text in self.stored()["data"].items()}


@pytest.fixture
async def team():
    made = Namespace()
    await made.put("a", runtime=GROUP)
    await made.put("single")
    return made


async def test_each_service_of_several_pods_has_a_random_key_of_its_own(team, caplog):
    await team.put("b", runtime=GROUP)
    with caplog.at_level(logging.DEBUG):
        await team.keys.ensure("default")
    entries = team.entries()
    assert set(entries) == {"a", "b"}
    assert len(set(entries.values())) == 2
    assert all(len(key) >= 32 for key in entries.values())
    assert not any(key.decode() in caplog.text for key in entries.values())
    assert {owner["name"] for owner in team.stored()["metadata"]["ownerReferences"]} == {"a", "b"}


async def test_keys_stay_also_with_another_operator_and_a_further_service(team):
    await team.keys.ensure("default")
    before = team.entries()
    await team.put("b", runtime=GROUP)
    await team.keys.ensure("default")
    assert team.entries()["a"] == before["a"]
    both = team.entries()
    team.cluster.writes.clear()
    await team.started().ensure("default")
    assert team.entries() == both
    assert team.cluster.writes == []


async def test_a_service_that_is_one_pod_again_keeps_its_key_for_pods_of_before(team):
    await team.keys.ensure("default")
    before = team.entries()
    await team.put("a")
    await team.put("b", runtime=GROUP)
    await team.keys.ensure("default")
    assert team.entries()["a"] == before["a"]


async def test_a_service_that_was_deleted_and_made_again_has_a_key_at_once(team):
    await team.keys.ensure("default")
    before = team.entries()
    await team.cluster.drop(INFERENCE_SERVICE, "default", "a")
    await team.cluster.drop(SECRET, "default", names.NODE_KEYS_SECRET)  # with its last owner
    again = service("a", runtime=GROUP)
    again["metadata"]["uid"] = "another"
    team.store.put(INFERENCE_SERVICE, await team.cluster.put(INFERENCE_SERVICE, again))
    await team.keys.ensure("default")
    assert team.entries()["a"] != before["a"]


async def test_what_another_one_takes_out_or_spoils_is_made_again(team):
    await team.keys.ensure("default")
    for data in ({}, {"a": "c2hvcnQ="}, {"a": "not base64"}):
        await team.cluster.put(SECRET, {**team.stored(), "data": data})
        team.clock.advance(READ_EVERY_S)
        await team.keys.ensure("default")
        assert len(team.entries()["a"]) >= 32


async def test_a_secret_of_another_owner_is_not_taken(team):
    theirs = {"metadata": {"namespace": "default", "name": names.NODE_KEYS_SECRET}, "data": {"a": "eA=="}}
    await team.cluster.put(SECRET, theirs)
    with pytest.raises(ConflictError, match="is not the operator's: delete it"):
        await team.keys.ensure("default")
    assert team.stored()["data"] == {"a": "eA=="}


async def test_it_is_not_read_at_each_reconcile(team):
    await team.keys.ensure("default")
    team.cluster.reads.clear()
    await team.keys.ensure("default")
    assert team.cluster.reads == []
