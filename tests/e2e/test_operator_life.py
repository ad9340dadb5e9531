"""The operator on a real control plane with stub pods: from create to delete, and through everything that goes
wrong."""

import asyncio
import json
import signal

import pytest

from fakes.operator_rig import kubectl
from kvasir_api import names
from kvasir_kube.kinds import CONTROLLER_REVISION, DEPLOYMENT, DISRUPTION_BUDGET, INFERENCE_SERVICE, POD, SERVICE

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


async def test_create_becomes_ready_and_says_where(rig):
    await rig.apply(replicas=2)
    ready = await rig.until_condition("Ready")
    status = await rig.status()
    assert ready["reason"] == "AllReplicasReady"
    assert status["address"] == {"url": "http://gateway.example/v1"}
    assert (status["replicas"], status["readyReplicas"], status["desiredReplicas"]) == (2, 2, 2)
    assert status["modelName"] == "tiny"
    assert [c["type"] for c in status["conditions"]] == ["Ready"]
    assert len(await rig.noted("Ready")) == 1

    async def measured():
        return (await rig.status()).get("capacity", {}).get("kvTokens") == 1000

    await rig.until(measured, lambda: rig.dump("tiny"))
    assert (await rig.status())["capacity"]["device"] == "cpu, stub"
    cold = (await rig.status())["coldStart"]
    assert cold["seconds"] >= cold.get("scheduleSeconds", 0) + cold.get("imageSeconds", 0) - 1
    assert {"weightsSeconds", "processSeconds", "loadSeconds"}.isdisjoint(cold)
    (svc,) = await rig.all(SERVICE)
    assert svc["spec"]["ports"][0]["port"] == names.PORT_HTTP
    assert "finalizers" not in (await rig.service())["metadata"]
    assert not any(
        name.startswith(("kopf", names.GROUP)) for name in (await rig.service())["metadata"].get("annotations", {})
    )


async def test_idle_writes_nothing(rig):
    await rig.apply(replicas=1)
    await rig.until_condition("Ready")
    await rig.until(lambda: settled(rig), lambda: "no write for two seconds")


async def settled(rig):
    mark = rig.audit_mark()
    for _ in range(50):
        await asyncio.sleep(0.04)
    return not rig.writes_since(mark)


async def test_scale_subresource_rules_without_autoscaling(rig):
    await rig.apply(replicas=1)
    await rig.until_condition("Ready")
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=3", f"--namespace={rig.namespace}")
    await rig.until_condition("Ready")
    assert len(await rig.until_pods(3)) == 3
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=1", f"--namespace={rig.namespace}")
    await rig.until_pods(1)
    assert await rig.noted("ScaledUp") == ["1 → 3 replicas: spec.replicas is 3"]
    assert await rig.noted("ScaledDown") == ["3 → 1 replica: spec.replicas is 1"]
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=0", f"--namespace={rig.namespace}")
    await rig.until_condition("Ready", reason="ScaledToZero")
    await rig.until_pods(0)


async def test_busy_replica_is_drained_before_it_leaves(rig):
    await rig.apply(replicas=2)
    await rig.until_condition("Ready")
    first, second = await rig.until_pods(2)
    first.set_state(running=2, remaining_tokens=500)
    second.set_state(running=1, remaining_tokens=100)
    await rig.heard()
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=1", f"--namespace={rig.namespace}")

    async def drains():
        return second.drains or None

    await rig.until(drains, lambda: "the replica with the least work is asked to drain")
    assert (first.drains, set((await rig.deployments()).values())) == ([], {2})
    status = await rig.until_condition("Ready")
    assert (await rig.status()).get("counts", {}).get("draining", 0) in (0, 1), status
    second.set_state(running=0)
    assert await rig.until_pods(1) == [first]
    assert (await rig.noted("DrainStarted"))[0].startswith(second.name)
    assert (await rig.noted("Drained"))[0].startswith(second.name)


async def test_returning_load_cancels_a_drain(rig):
    await rig.apply(replicas=2)
    await rig.until_condition("Ready")
    for pod in await rig.until_pods(2):
        pod.set_state(running=1, remaining_tokens=100)
    await rig.heard()
    uids = await rig.pod_uids()
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=1", f"--namespace={rig.namespace}")

    async def draining():
        return [p for p in rig.kubelet.of() if p.drains] or None

    (victim,) = await rig.until(draining, lambda: "a drain")
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=2", f"--namespace={rig.namespace}")

    async def released():
        return victim.drains[-1] == "DELETE" and victim.state.phase == "ready"

    await rig.until(released, lambda: f"the drain is taken back: {victim.drains}")
    await rig.until_condition("Ready", reason="AllReplicasReady")
    assert await rig.pod_uids() == uids


async def test_edit_makes_a_revision_and_drains_the_old_one(rig):
    await rig.apply(replicas=2)
    await rig.until_condition("Ready")
    (old,) = await rig.deployments()
    for pod in await rig.until_pods(2):
        pod.set_state(running=1)
    await rig.heard()
    await rig.apply(replicas=2, runtime={"blockSize": 32})
    await rig.until_condition("Reconciling", reason="RollingOut")

    async def drained():
        for pod in rig.kubelet.of(old):
            if pod.drains:
                pod.set_state(running=0)
        return not rig.kubelet.of(old)

    await rig.until(drained, lambda: "the old revision is gone")
    await rig.until_condition("Ready", reason="AllReplicasReady")
    status = await rig.status()
    new = status["rollout"]["currentRevision"]
    assert new != old
    assert status["rollout"]["lastGoodRevision"] == new
    assert {p.revision for p in rig.kubelet.of()} == {new}
    assert all(p.args[-2:] == ["--block-size", "32"] for p in rig.kubelet.of())
    assert len(await rig.all(CONTROLLER_REVISION)) == 2
    assert await rig.noted("RolloutComplete") == [f"every replica runs revision {new}"]

    async def removed():
        return list(await rig.deployments()) == [new]

    await rig.until(removed, lambda: "the old workload is deleted")


async def test_refused_model_stalls_with_its_own_words(rig):
    await rig.apply(model={"uri": "file:///srv/x"})
    await rig.until_condition("Ready")
    await rig.apply(model={"uri": "pvc://models/broken"})
    missing = await rig.until_condition("Stalled", reason="InvalidSpec")
    assert missing["message"] == f"spec.model.uri: there is no PersistentVolumeClaim {rig.namespace}/models"
    await rig.claim()
    stalled = await rig.until_condition("Stalled", reason="ModelLoadFailed")
    assert stalled["message"] == "pvc://models/broken has no config.json"
    assert len(rig.kubelet.of()) == 2  # the old revision goes on serving
    assert await rig.noted("ModelLoadFailed") == ["pvc://models/broken has no config.json"]
    await rig.apply(model={"uri": "file:///srv/x"})
    await rig.until_condition("Ready")
    await rig.until_pods(1)


async def test_directory_outside_the_allowed_ones_is_refused(rig):
    await rig.apply(model={"uri": "file:///etc/x"})
    stalled = await rig.until_condition("Stalled", reason="InvalidSpec")
    assert stalled["message"].startswith("spec.model.uri: /etc/x is not below a directory that the operator allows")
    assert await rig.all(DEPLOYMENT) == []


async def test_second_claimant_of_a_name_is_reached_by_its_namespace_and_name(rig):
    await rig.apply("tiny")
    await rig.until_condition("Ready")
    # Ages are whole seconds: of two made within one, the first in the alphabet counts as the older.
    await rig.apply("tiny-too", model={"uri": "file:///srv/x", "servedName": "tiny"})
    conflict = await rig.until_condition("NameConflict", name="tiny-too")
    assert f"{rig.namespace}/tiny" in conflict["message"]
    await rig.until_condition("Ready", name="tiny-too")
    status = (await rig.client.get(INFERENCE_SERVICE, rig.namespace, "tiny-too"))["status"]
    assert status["modelName"] == f"{rig.namespace}/tiny-too"
    await rig.delete("tiny")

    async def owned():
        status = (await rig.client.get(INFERENCE_SERVICE, rig.namespace, "tiny-too"))["status"]
        return status["modelName"] == "tiny" and "NameConflict" not in {c["type"] for c in status["conditions"]}

    await rig.until(owned, lambda: "of one namespace the next one has the name")


async def test_foreign_service_is_not_taken_over(rig):
    foreign = {"metadata": {"namespace": rig.namespace, "name": "tiny"}, "spec": {"ports": [{"port": 1}]}}
    await rig.client.apply(SERVICE, foreign, manager="somebody")
    await rig.apply()
    blocked = await rig.until_condition("Stalled", reason="NameConflict")
    assert [blocked["message"]] == await rig.noted("NameConflict")
    assert blocked["message"].startswith("Service/tiny exists and does not belong to this service")
    await rig.client.delete(SERVICE, rig.namespace, "tiny")
    await rig.until_condition("Ready")


async def test_unschedulable_says_so(rig):
    await rig.apply(resources={"cpu": "10000"})
    waiting = await rig.until_condition("Ready", "False", reason="Unschedulable")
    assert "Insufficient cpu" in waiting["message"]
    await rig.until_condition("CapacityLimited")


async def test_delete_leaves_nothing(rig):
    await rig.apply(replicas=2)
    await rig.until_condition("Ready")
    rig.stop()
    await rig.delete()

    async def nothing():
        kinds = (INFERENCE_SERVICE, DEPLOYMENT, CONTROLLER_REVISION, POD, SERVICE)
        return not any([await rig.all(kind) for kind in kinds])

    await rig.until(nothing, lambda: "everything is collected although the operator is down")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_restart_and_upgrade_change_no_pod(rig, how):
    await rig.apply(replicas=2)
    await rig.until_condition("Ready")
    uids, generations = await rig.pod_uids(), await workload_generations(rig)
    rig.stop(how)
    rig.start("--allow-model-dir=/srv", "--runtime-image-cpu=kvasir-runtime-cpu:next")
    mark = rig.audit_mark()
    kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=3", f"--namespace={rig.namespace}")
    await rig.until_condition("Ready")
    assert uids < await rig.pod_uids()
    images = {p["spec"]["containers"][0]["image"] for p in await rig.all(POD)}
    assert images == {"kvasir-runtime-cpu"}
    writes = [(w.verb, w.resource) for w in rig.writes_since(mark) if w.resource in ("controllerrevisions", "services")]
    assert writes == []
    assert (await workload_generations(rig)).keys() == generations.keys()


async def workload_generations(rig):
    return {d["metadata"]["name"]: d["metadata"]["generation"] for d in await rig.all(DEPLOYMENT)}


async def test_killed_pod_is_replaced(rig):
    await rig.apply(replicas=2)
    await rig.until_condition("Ready")
    victim = rig.kubelet.of()[0]
    await rig.kubelet.kill(victim.name)

    async def replaced():
        found = rig.kubelet.of()
        return len(found) == 2 and victim not in found

    await rig.until(replaced, lambda: "a new pod")
    await rig.until_condition("Ready")
    assert rig.running


async def test_emptying_nodes_takes_one_replica_at_a_time(rig):
    await rig.apply(replicas=2)
    await rig.until_condition("Ready")
    first, second = await rig.until_pods(2)

    async def allows_one():
        (budget,) = await rig.all(DISRUPTION_BUDGET)
        return budget.get("status", {}).get("disruptionsAllowed") == 1

    await rig.until(allows_one, lambda: "a budget that lets one go")
    first.set_state(running=1, remaining_tokens=500)
    assert "TooManyRequests" not in evict(rig, first)
    assert "disruption budget" in evict(rig, second)
    first.set_state()
    await rig.until_condition("Ready")
    await rig.until(allows_one, lambda: "a budget that lets one go again")


def evict(rig, pod):
    """Ask as `kubectl drain` does; what the API server says."""
    metadata = {"name": pod.name, "namespace": rig.namespace}
    body = json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})
    path = f"/api/v1/namespaces/{rig.namespace}/pods/{pod.name}/eviction"
    return kubectl(rig.control, "create", "--raw", path, "-f", "-", check=False, text=body)
