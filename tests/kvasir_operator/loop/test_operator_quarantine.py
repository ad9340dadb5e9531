"""A device fails under the whole operator: its pod is quarantined, comes back or goes, and all of it is told."""

import pytest

from fakes.manifests import UNSCHEDULABLE, pod, terminated
from fakes.operator_bench import Bench
from kvasir_api import names
from kvasir_kube.kinds import POD
from kvasir_operator.rollout.quarantine import NO_ROOM_S, QUARANTINE_S

WORDS = "DeviceFault: Xid 79 (the GPU has fallen off the bus): CUDA error: unknown error"


class DeviceBench(Bench):
    """Two replicas, of which the first one's device fails."""

    async def begin(self):
        await self.put_service(replicas=2)
        await self.turn()
        await self.put_pods(2)
        await self.turn()
        self.revision = self.stored("p0")["metadata"]["labels"][names.LABEL_REVISION]
        await self.put_pod("p0", container={"restartCount": 1, "state": terminated(3, f"kvasir: {WORDS}")})

    async def put_pod(self, name, **fields):
        """As it is now; what the operator marked stays."""
        known = self.cluster.objects[POD.plural].get(("default", name))
        made = pod(name, revision=self.revision, **fields)
        if known:
            made["metadata"] = known["metadata"]
        await self.cluster.put(POD, made)

    def stored(self, name):
        return self.cluster.stored(POD, "default", name)

    def role(self, name):
        return self.stored(name)["metadata"]["labels"].get(names.LABEL_ROLE)

    def degraded(self):
        return next((c["message"] for c in self.status()["conditions"] if c["reason"] == "DeviceFailed"), "")


@pytest.fixture
async def bench():
    made = DeviceBench()
    await made.begin()
    return made


async def test_it_is_quarantined_with_its_device_and_told(bench):
    await bench.turn()
    assert bench.role("p0") == names.ROLE_QUARANTINE
    (owner,) = bench.stored("p0")["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["controller"]) == (names.KIND, False)
    assert bench.events("DeviceFailed") == [f"p0: on node node: {WORDS}"]
    await bench.turn()
    assert bench.degraded() == f"p0 on node node is quarantined with its device: {WORDS}"
    assert (bench.status()["replicas"], bench.status()["readyReplicas"]) == (1, 1)
    await bench.put_pod("p2", ready=True)  # what the workload made in its place
    await bench.turn()
    assert (bench.reason(), bench.replicas()) == ("AllReplicasReady", [2])
    assert bench.degraded()
    bench.writes()
    for _ in range(10):
        await bench.turn()
    assert ("merge", "pods") not in bench.writes()


async def test_its_time_ends(bench):
    await bench.turn()
    await bench.put_pod("p2", ready=True)
    await bench.turn(QUARANTINE_S - 10)
    assert bench.role("p0") == names.ROLE_QUARANTINE
    await bench.turn(20)
    assert ("default", "p0") not in bench.cluster.objects[POD.plural]
    assert bench.events("QuarantinedPodDeleted") == [f"p0: its {QUARANTINE_S:g} s are over"]
    await bench.turn()
    assert bench.degraded() == ""


async def test_a_service_whose_only_place_it_is_gets_it_back_once(bench):
    await bench.turn()
    created = "2026-01-01T00:00:00Z"
    waiting = pod("p2", revision=bench.revision, node="", conditions=[UNSCHEDULABLE], phase="Pending")
    waiting["metadata"]["creationTimestamp"] = created
    await bench.cluster.put(POD, waiting)
    await bench.turn(NO_ROOM_S)
    assert bench.role("p0") == names.ROLE_SERVE
    assert not bench.stored("p0")["metadata"].get("ownerReferences")
    assert bench.events("QuarantinedPodRestored") == ["p0: there is no room for another replica"]
    await bench.cluster.delete(POD, "default", "p2")  # by its workload, which has one too many
    for _ in range(5):
        await bench.turn(60)
    assert bench.role("p0") == names.ROLE_SERVE
    assert len(bench.events("DeviceFailed")) == 1


async def test_a_restarted_operator_knows_what_is_quarantined(bench):
    await bench.turn()
    await bench.put_pod("p2", ready=True)
    await bench.turn()
    assert await bench.restarted() == []
    assert bench.degraded()
