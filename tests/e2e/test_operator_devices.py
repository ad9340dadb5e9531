"""F19: the device of a replica fails. Its pod keeps it from everybody for a while, and another node takes its place."""

import pytest

from fakes.operator_rig import kubectl
from kvasir_api import names
from kvasir_kube.kinds import NETWORK_POLICY, POD, SERVICE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
WORDS = "DeviceFault: Xid 79 (the GPU has fallen off the bus): CUDA error: unknown error"
GPUS_OF_A_NODE = 4


def selects(selector, pod):
    return selector.items() <= pod["metadata"]["labels"].items()


async def test_a_pod_whose_device_failed_is_quarantined_and_comes_back_or_is_replaced(rig):
    gpu = {"accelerator": {"count": 1}, "cpu": "1", "memory": "1Gi"}
    await rig.apply(replicas=GPUS_OF_A_NODE, model={"uri": "file:///srv/tiny", "inspect": "Never"}, resources=gpu)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    before = await rig.pod_uids()
    first, second, *_ = rig.kubelet.of()
    await comes_back(rig, first, before)
    async with rig.second_node() as other:
        await is_replaced(rig, second, before, other)
        kubectl(rig.control, "delete", "infsvc/tiny", f"--namespace={rig.namespace}")

        async def gone():
            return not await rig.all(POD)

        await rig.until(gone, lambda: kubectl(rig.control, "get", "pods", f"--namespace={rig.namespace}", "-oyaml"))


async def comes_back(rig, victim, before):
    """Its node is the only one, and full; when it computes again it is what it was, and the one that waited goes."""
    await rig.kubelet.fail(victim.name, WORDS)

    async def waits():
        return len(await rig.pod_uids() - before) == 1 and (await rig.status()).get("readyReplicas") == 3

    await rig.until(waits, lambda: rig.dump("tiny"))
    assert await role(rig, victim) == names.ROLE_QUARANTINE
    await rig.kubelet.ready(victim.name)

    async def back():
        return await rig.pod_uids() == before and (await rig.status()).get("readyReplicas") == GPUS_OF_A_NODE

    await rig.until(back, lambda: rig.dump("tiny"))
    held = await rig.client.get(POD, rig.namespace, victim.name)
    assert [owner["kind"] for owner in held["metadata"]["ownerReferences"]] == ["ReplicaSet"]
    assert await rig.noted("QuarantinedPodRestored") == [f"{victim.name}: it is ready again before another replica"]


async def is_replaced(rig, victim, before, other):
    """Another node has room: the victim keeps its device from everybody, and nothing else of it is left in use."""
    await rig.kubelet.fail(victim.name, WORDS)

    async def replaced():
        return (await rig.status()).get("readyReplicas") == GPUS_OF_A_NODE and len(other.of()) == 1

    await rig.until(replaced, lambda: rig.dump("tiny"))
    held = await rig.client.get(POD, rig.namespace, victim.name)
    assert (held["metadata"]["uid"], await role(rig, victim)) == (victim.uid, names.ROLE_QUARANTINE)
    assert [owner["kind"] for owner in held["metadata"]["ownerReferences"]] == [names.KIND]
    assert len(await rig.pod_uids() - before) == 1, "no other replica was touched"
    (svc,), (guard,) = await rig.all(SERVICE), await rig.all(NETWORK_POLICY)
    assert not selects(svc["spec"]["selector"], held)
    assert selects(guard["spec"]["podSelector"]["matchLabels"], held), "its ops port is guarded as before"
    degraded = await rig.until_condition("Degraded", reason="DeviceFailed")
    assert degraded["message"] == f"{victim.name} on node {rig.namespace} is quarantined with its device: {WORDS}"
    assert f"{victim.name}: on node {rig.namespace}: {WORDS}" in await rig.noted("DeviceFailed")
    assert (await rig.until_condition("Ready"))["reason"] == "AllReplicasReady"


async def role(rig, pod):
    return (await rig.client.get(POD, rig.namespace, pod.name))["metadata"]["labels"][names.LABEL_ROLE]
