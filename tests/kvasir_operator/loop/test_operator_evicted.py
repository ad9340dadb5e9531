"""A replica that its kubelet evicted, through the whole operator on a fake cluster: the pod stays, Failed."""

import pytest

from fakes.manifests import pod
from fakes.operator_bench import Bench
from kvasir_api import names
from kvasir_kube.kinds import POD
from kvasir_operator.loop.clock import rfc3339

WORDS = "Evicted: The node was low on resource: ephemeral-storage."


@pytest.fixture
def bench():
    return Bench()


async def evict(bench, name):
    """The kubelet ends the pod; nobody deletes its object."""
    (before,) = [found for found in bench.cluster.objects[POD.plural].values() if found["metadata"]["name"] == name]
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": rfc3339(bench.clock.wall())}
    status = {"phase": "Failed", "reason": "Evicted", "message": WORDS.removeprefix("Evicted: "), "conditions": [ready]}
    await bench.cluster.put(POD, {**before, "status": status})


async def replace(bench, name, *, ready):
    """What the ReplicaSet does, which does not count pods that have ended."""
    (revision,) = {
        found["metadata"]["labels"][names.LABEL_REVISION] for found in bench.cluster.objects[POD.plural].values()
    }
    made = pod(name, revision=revision, ready=ready, ip="10.0.0.3")
    made["metadata"]["creationTimestamp"] = rfc3339(bench.clock.wall() + 1)
    await bench.cluster.put(POD, made)
    bench.say(2, **({} if ready else {"phase": "loading"}))


def condition(bench, kind):
    found = {c["type"]: c for c in bench.status()["conditions"]}
    return found.get(kind, {"status": "False"})


async def test_an_eviction_is_named_until_another_replica_serves_and_never_counted(bench):
    await bench.put_service(replicas=2)
    await bench.turn()
    await bench.put_pods(2)
    await bench.turn()
    assert bench.reason() == "AllReplicasReady"
    await evict(bench, "p1")
    await replace(bench, "p2", ready=False)
    await bench.turn()
    degraded = condition(bench, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ReplicasFailing")
    assert degraded["message"].startswith(f"p1: {WORDS} (node node); free disk on the node")
    assert any(WORDS in note for note in bench.events("ReplicaFailed"))
    assert bench.status()["counts"].get("failed") is None
    await replace(bench, "p2", ready=True)
    await bench.turn()
    assert bench.reason() == "AllReplicasReady"
    assert condition(bench, "Degraded")["status"] == "False"
    assert bench.status()["replicas"] == 2
    await bench.put_service(replicas=3)
    await bench.turn()
    assert condition(bench, "Degraded")["status"] == "False", "an eviction of before is no reason why one starts now"
    assert bench.replicas() == [3]
