"""The autoscaler on a real control plane: stub pods say what a load would make them say."""

import re

import pytest

from fakes.operator_rig import kubectl

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

ELASTIC = {
    "minReplicas": 1,
    "maxReplicas": 3,
    "scaleDown": {"windowSeconds": 3, "percent": 100, "periodSeconds": 1},
}


async def test_load_raises_and_lowers_replicas_with_reasons(rig):
    await rig.apply(autoscaling=ELASTIC)
    await rig.until_condition("Ready")
    (first,) = await rig.until_pods(1)
    first.set_state(kv_pinned=950, running=8)
    await rig.until_pods(2)
    status = await rig.until(lambda: desired(rig, 2), lambda: rig.dump("tiny"))
    assert status["autoscaling"]["bindingSignal"] == "kv"
    (decision,) = status["autoscaling"]["decisions"]
    assert (decision["from"], decision["to"], decision["signal"]) == (1, 2, "kv")
    assert re.match(r"KV cache needs 1\.\d replicas at 85 % \(kv 1\.\d\d, slots 0\.00, ", decision["reason"])
    (note,) = await rig.noted("ScaledUp")
    assert re.fullmatch(r"1 → 2 replicas: KV cache needs 1\.\d replicas at 85 %", note)
    assert (await rig.service())["spec"].get("replicas") == 1  # the spec is the user's
    for pod in await rig.until_pods(2):
        pod.set_state(kv_pinned=0, running=0)
    await rig.until_pods(1)
    status = await rig.until(lambda: desired(rig, 1), lambda: rig.dump("tiny"))
    assert [d["to"] for d in status["autoscaling"]["decisions"]] == [1, 2]
    assert len(await rig.noted("ScaledDown")) == 1


async def desired(rig, count):
    status = await rig.status()
    return status if status.get("desiredReplicas") == count else None


async def test_silent_pod_holds_the_number_and_says_so(rig):
    slow = {**ELASTIC["scaleDown"], "windowSeconds": 10}
    await rig.apply(autoscaling={**ELASTIC, "scaleDown": slow})
    await rig.until_condition("Ready")
    (first,) = await rig.until_pods(1)
    first.set_state(kv_pinned=950, running=8)
    await rig.until_pods(2)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    pods = rig.kubelet.of()
    pods[1].silent = True
    pods[0].set_state(kv_pinned=0, running=0)
    stale = await rig.until_condition("MetricsStale")
    assert pods[1].name in stale["message"]

    async def held():
        return await rig.events("ScalingHeld") or None

    notes = await rig.until(held, lambda: "an event about holding")
    assert "the count stays while readings are missing" in notes[0]
    assert len(rig.kubelet.of()) == 2
    pods[1].silent = False
    await rig.until_pods(1)


async def test_wanted_number_survives_the_operators_restart(rig):
    await rig.apply(autoscaling={**ELASTIC, "scaleDown": {"windowSeconds": 3600}})
    await rig.until_condition("Ready")
    (first,) = await rig.until_pods(1)
    first.set_state(kv_pinned=950, running=8)
    await rig.until_pods(2)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    uids = await rig.pod_uids()
    rig.stop()
    for pod in rig.kubelet.of():
        pod.set_state(kv_pinned=0, running=0)
    rig.start("--allow-model-dir=/srv")
    await rig.heard()
    await rig.heard()
    status = await rig.status()
    assert (status["desiredReplicas"], await rig.pod_uids()) == (2, uids)
    assert [d["to"] for d in status["autoscaling"]["decisions"]] == [2]


async def test_bounds_are_followed_and_scale_is_refused(rig):
    await rig.apply(autoscaling=ELASTIC)
    await rig.until_condition("Ready")
    said = kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=3", f"--namespace={rig.namespace}", check=False)
    assert "spec.replicas has no effect while spec.autoscaling is set" in said
    await rig.apply(autoscaling={**ELASTIC, "minReplicas": 2})
    await rig.until_pods(2)

    async def decided():
        return (await rig.status()).get("autoscaling", {}).get("decisions") or None

    (decision,) = await rig.until(decided, lambda: rig.dump("tiny"))
    assert (decision["from"], decision["to"], decision["signal"]) == (1, 2, "floor")
    for pod in await rig.until_pods(2):
        pod.set_state(kv_pinned=1000)
    await rig.apply(autoscaling={**ELASTIC, "minReplicas": 2, "maxReplicas": 2})
    said = await rig.until_condition("ScalingAtMax", reason="MaximumReached")
    assert "spec.autoscaling.maxReplicas 2" in said["message"]
    await rig.until_condition("Ready", reason="AllReplicasReady")
