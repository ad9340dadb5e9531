"""Replicas that do not fit, on a real control plane: what the spec lists is reduced until they start."""

import pytest

from kvasir_api import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


def without_room(pod):
    """A device with room for 64 sequences whose cache has 8 bits."""
    fits = "--max-sequences 64" in " ".join(pod.args) and "--kv-cache-dtype int8" in " ".join(pod.args)
    return "" if fits else f"{names.REFUSAL_PREFIX}{names.OUT_OF_DEVICE_MEMORY}3 GiB are free, 4 GiB are needed"


async def test_a_replica_that_does_not_fit_is_made_smaller(rig):
    rig.kubelet.refusal = without_room
    runtime = {"maxSequences": 128}
    await rig.apply(runtime=runtime)
    stalled = await rig.until_condition("Stalled", reason="OutOfDeviceMemory")
    assert "3 GiB are free" in stalled["message"]
    await rig.apply(runtime=runtime, reductions=["FewerSequences", "Int8KvCache"])
    await rig.until_condition("Ready", reason="AllReplicasReady")
    status = await rig.status()
    assert status["rollout"]["reductions"] == ["FewerSequences", "Int8KvCache"]
    degraded = await rig.until_condition("Degraded", reason="Reduced")
    assert "FewerSequences, Int8KvCache of spec.reductions" in degraded["message"]
    rig.kubelet.refusal = lambda pod: ""
    await rig.apply(runtime={"maxSequences": 100}, reductions=["FewerSequences", "Int8KvCache"])

    async def whole():
        found = await rig.status()
        ready = [c["reason"] for c in found.get("conditions", ()) if c["type"] == "Ready"]
        return ready == ["AllReplicasReady"] and "reductions" not in found["rollout"]

    await rig.until(whole, lambda: rig.dump("tiny"))
    (pod,) = await rig.until_pods(1)
    assert "--max-sequences 100" in " ".join(pod.args)
