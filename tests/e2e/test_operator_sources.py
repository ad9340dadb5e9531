"""F28: a claim whose volume is late. That there is no claim at all is shown with the operator's life."""

import pytest

from fakes.operator_rig import kubectl
from kvasir_kube.kinds import CLAIM

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


async def test_a_claim_without_a_volume_is_told_and_waited_for(rig):
    size = {"requests": {"storage": "1Mi"}}
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": size}
    where = {"namespace": rig.namespace, "name": "models"}
    await rig.client.apply(CLAIM, {"metadata": where, "spec": spec}, manager="test")
    await rig.apply(replicas=1, model={"uri": "pvc://models/tiny"})
    told = await rig.until_condition("Ready", "False", reason="Unschedulable")
    assert "unbound immediate PersistentVolumeClaims" in told["message"]
    await rig.claim()
    await rig.until_condition("Ready", reason="AllReplicasReady")
    assert "Bound" in kubectl(rig.control, "get", "pvc", "models", f"--namespace={rig.namespace}")
