"""Nodes that go: one whose object is deleted while its pods stream, and a spot node that gets 30 seconds' notice."""

import asyncio
import json

import pytest

from fakes.operator_rig import kubectl
from kvasir_api import names
from kvasir_kube.kinds import POD

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
SPOT = "karpenter.sh/capacity-type=spot"
NOTICE = "aws-node-termination-handler/spot-itn=now:NoSchedule"
DRAIN_S = 85
"""Longer than the notice, as a busy machine is no failure of ours."""


def scale(rig, replicas):
    kubectl(rig.control, "scale", "infsvc/tiny", f"--replicas={replicas}", f"--namespace={rig.namespace}")


async def until_ready(rig, *counts):
    """Until the nodes of these kubelets have so many pods each, and all of them are ready."""

    async def holds():
        status = await rig.status()
        placed = all(len(kubelet.of()) == count for kubelet, count in counts)
        return placed and status.get("readyReplicas") == status.get("replicas") == sum(count for _, count in counts)

    await rig.until(holds, lambda: rig.dump("tiny"))


@pytest.fixture
def no_collector(control):
    """The cluster's own collector, which deletes pods of a node that has been gone for 40 s, has no right to."""
    binding = "clusterrolebinding/system:controller:pod-garbage-collector"
    subjects = json.loads(kubectl(control, "get", binding, "-ojson"))["subjects"]

    def bind(given):
        kubectl(control, "patch", binding, "--type=merge", "-p", json.dumps({"subjects": given}))

    bind([])
    yield
    bind(subjects)


@pytest.mark.usefixtures("no_collector")
async def test_a_node_that_was_deleted_loses_its_replicas_first_and_only_when_it_must(rig):
    """Its agent is alive, so what runs there streams on; nobody deletes the pods but the cluster's own collector, which
    is played here."""
    await rig.apply(replicas=2)
    await until_ready(rig, (rig.kubelet, 2))
    async with rig.second_node() as other:
        for pod in rig.kubelet.of():
            pod.set_state(running=1, remaining_tokens=9)
        before = await rig.pod_uids()
        kubectl(rig.control, "delete", "node", rig.namespace)
        scale(rig, 3)
        await until_ready(rig, (rig.kubelet, 2), (other, 1))
        assert before < await rig.pod_uids(), "a pod was taken away although it streams"
        # The one that is on a node costs most to let go, and stays.
        other.of()[0].set_state(running=4, remaining_tokens=9000)
        scale(rig, 2)

        async def drains():
            return [pod for pod in (*rig.kubelet.of(), *other.of()) if pod.drains] or None

        (victim,) = await rig.until(drains, lambda: rig.dump("tiny"))
        assert victim in rig.kubelet.of()
        victim.set_state(running=0)
        await until_ready(rig, (rig.kubelet, 1), (other, 1))
        assert not rig.kubelet.cut_off
        (left,) = rig.kubelet.of()
        await rig.client.delete(POD, rig.namespace, left.name, grace_s=0)
        await until_ready(rig, (rig.kubelet, 0), (other, 2))


async def test_a_spot_node_is_left_first_and_within_its_notice(rig):
    async with rig.second_node() as spot:
        on_demand, spot_node = rig.namespace, f"{rig.namespace}-b"
        kubectl(rig.control, "label", "node", spot_node, SPOT)
        kubectl(rig.control, "cordon", on_demand)
        await rig.apply(replicas=2)
        await until_ready(rig, (spot, 2))
        kubectl(rig.control, "uncordon", on_demand)
        kubectl(rig.control, "cordon", spot_node)
        scale(rig, 4)
        await until_ready(rig, (spot, 2), (rig.kubelet, 2))
        kubectl(rig.control, "uncordon", spot_node)
        for pod in spot.of():  # they cost most to let go, and must all the same
            pod.set_state(running=3, remaining_tokens=900)
        scale(rig, 3)

        async def drains():
            return [pod for pod in (*rig.kubelet.of(), *spot.of()) if pod.drains] or None

        (victim,) = await rig.until(drains, lambda: rig.dump("tiny"))
        assert victim in spot.of()
        victim.set_state(running=0)
        await until_ready(rig, (spot, 1), (rig.kubelet, 2))
        await noticed(rig, spot, spot_node)


async def noticed(rig, spot, node):
    """What handlers of such notices do: taint, cordon, evict. The replica ends its work and is replaced elsewhere."""
    kubectl(rig.control, "taint", "node", node, NOTICE)
    (leaving,) = spot.of()
    drain = ["drain", node, f"--pod-selector={names.LABEL_SERVICE}=tiny", "--delete-emptydir-data"]
    emptied = asyncio.create_task(asyncio.to_thread(kubectl, rig.control, *drain, f"--timeout={DRAIN_S}s"))

    async def asked():
        return leaving.terminating

    await rig.until(asked, lambda: rig.dump("tiny"))
    await until_ready(rig, (spot, 0), (rig.kubelet, 3))
    assert leaving.name in spot.pods, "it was cut short in the middle of its work"
    await spot.finish(leaving.name)
    await emptied
    assert not spot.pods
    assert (await rig.until_condition("Ready"))["reason"] == "AllReplicasReady"
