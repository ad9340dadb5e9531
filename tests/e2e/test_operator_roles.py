"""Roles on a real API server: pods get the one of computing prompts, as many as the spec and the prompts require."""

import pytest

from kvasir_api import names
from kvasir_api.state import MeasuredRates
from kvasir_kube.kinds import POD

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]
FLAGS = (f"--lease-namespace={names.SYSTEM_NAMESPACE}", "--allow-model-dir=/srv")
ABLE = {"kv_prefill": True, "rates": MeasuredRates(prefill_tokens_per_s=1000.0)}
SPEC = {
    "replicas": 3,
    "runtime": {"kvHostBytes": 1 << 20},
    "resources": {"cpu": "100m", "memory": "64Mi"},
    "drain": {"timeoutSeconds": 1},
}


async def having(rig):
    """Names of the pods with the role that do not leave."""
    pods = [pod["metadata"] for pod in await rig.all(POD)]
    role = names.SERVING_ROLE_PREFILL
    return sorted(
        pod["name"]
        for pod in pods
        if (pod.get("annotations") or {}).get(names.ANNOTATION_SERVING_ROLE) == role and "deletionTimestamp" not in pod
    )


async def until_roles(rig, count, without=""):
    """The pods with the role, once they are so many; all pods say that they can have it."""

    async def found():
        for pod in rig.kubelet.of():
            pod.set_state(**ABLE)
        there = await having(rig)
        status = (await rig.status()).get("roles") or {}
        return there if len(there) == count == status.get("prefill", 0) and without not in there else None

    return await rig.until(found, lambda: f"{count} with the role: {rig.dump('tiny')}")


async def test_pods_get_the_role_and_another_one_follows_one_that_is_lost(rig):
    rig.stop()
    rig.start(*FLAGS)
    await rig.apply(**SPEC, roles={"prefill": {"minReplicas": 1, "maxReplicas": 2}})
    await rig.until_condition("Ready", reason="AllReplicasReady")
    (first,) = await until_roles(rig, 1)
    before = await rig.pod_uids()
    await rig.client.delete(POD, rig.namespace, first)
    (second,) = await until_roles(rig, 1, without=first)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    await rig.apply(**SPEC, roles={"prefill": {"minReplicas": 2, "maxReplicas": 2}})
    assert second in await until_roles(rig, 2)
    await rig.apply(**SPEC)
    assert await having(rig) == [] or await rig.until(lambda: gone(rig), lambda: rig.dump("tiny"))
    assert len(before & await rig.pod_uids()) == 2, "a role makes no pod"
    assert len(await rig.noted("RoleChanged")) >= 3


async def gone(rig):
    return not await having(rig)


async def test_as_many_as_the_prompts_that_wait_require(rig):
    rig.stop()
    rig.start(*FLAGS)
    await rig.apply(**SPEC, roles={"prefill": {"minReplicas": 0, "maxReplicas": 2}})
    await rig.until_condition("Ready", reason="AllReplicasReady")
    await until_roles(rig, 0)
    waits = {**ABLE, "waiting": 1, "waiting_uncached_tokens": 60_000}

    async def two():
        for pod in rig.kubelet.of():
            pod.set_state(**waits)
        return len(await having(rig)) == 2

    await rig.until(two, lambda: rig.dump("tiny"))
    await rig.apply(**SPEC, roles={"prefill": {"minReplicas": 0, "maxReplicas": 1}})

    async def one():
        return len(await having(rig)) == 1 and "maxReplicas is 1" in ((await rig.status()).get("roles") or {}).get(
            "message", ""
        )

    await rig.until(one, lambda: rig.dump("tiny"))


async def test_a_service_whose_replicas_exchange_no_blocks_is_refused_by_its_path(rig):
    await rig.apply(replicas=0, roles={"prefill": {}})
    said = await rig.until_condition("Stalled", reason="InvalidSpec")
    assert said["message"].startswith("spec.roles.prefill: ")
