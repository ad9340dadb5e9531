"""The claim of a model that two nodes require, through the whole operator on a fake cluster."""

import pytest

from fakes.manifests import pod
from fakes.operator_bench import Bench
from kvasir_api import names
from kvasir_kube.kinds import CLAIM, POD


@pytest.fixture
def bench():
    return Bench()


@pytest.mark.parametrize(("mode", "reason"), [("ReadWriteOnce", "VolumeInUse"), ("ReadWriteMany", "Scaling")])
async def test_a_claim_that_another_node_has_is_told(bench, mode, reason):
    claim = {"metadata": {"namespace": "default", "name": "models"}, "spec": {"accessModes": [mode]}}
    await bench.cluster.put(CLAIM, {**claim, "status": {"phase": "Bound"}})
    await bench.put_service(replicas=2, model={"uri": "pvc://models/tiny"})
    await bench.turn()
    await bench.put_pods(1)
    (first,) = bench.cluster.objects[POD.plural].values()
    mounted = {"type": "PodReadyToStartContainers", "lastTransitionTime": "1970-01-01T00:00:00Z"}
    first["status"]["conditions"].append({**mounted, "status": "True"})
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "1970-01-01T00:00:00Z"}
    revision = first["metadata"]["labels"][names.LABEL_REVISION]
    waits = pod("p1", revision=revision, ip="", node="other", conditions=[scheduled, {**mounted, "status": "False"}])
    await bench.cluster.put(POD, waits)
    await bench.turn(60.0)
    assert bench.reason() == reason
