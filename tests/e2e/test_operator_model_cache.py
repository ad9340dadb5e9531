"""Models in the caches of nodes, on a real API server with the operator's own rights."""

import pytest

from kvasir_api import names
from kvasir_kube.kinds import POD, labels

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]


async def test_a_model_is_fetched_where_a_replica_waits_and_where_one_may_come(still):
    still.start("--model-cache-dir=/cache", "--model-prefetch-nodes=1")

    async def fetches():
        return [pod for pod in await still.all(POD) if names.LABEL_FETCHES in labels(pod)]

    async with still.second_node() as second:
        for one in (still.kubelet, second):  # the scheduler chooses either
            one.hold, one.first_words = True, {"phase": "starting"}
        uri = f"s3://bucket/tiny@sha256:{'d' * 64}"
        await still.apply(model={"uri": uri, "inspect": "Never"}, autoscaling={"maxReplicas": 2})

        async def both():
            found = await fetches()
            return found if len(found) == 2 and [*still.kubelet.pods, *second.pods] else None

        found = await still.until(both, lambda: "a pod for the replica and one ahead")
        (kubelet,) = (one for one in (still.kubelet, second) if one.pods)
        (replica,) = kubelet.pods.values()
        here = [pod for pod in await still.all(POD) if pod["metadata"]["name"] == replica.name]
        nodes = {pod["spec"]["nodeName"] for pod in found}
        assert here[0]["spec"]["nodeName"] in nodes
        assert len(nodes) == 2
        assert here[0]["spec"]["containers"][0]["volumeMounts"][0]["readOnly"] is True
        await kubelet.ready(replica.name)
        await still.until_condition("Ready", reason="AllReplicasReady")

        async def one_is_left():
            return [pod["spec"]["nodeName"] for pod in await fetches()] == [*nodes - {here[0]["spec"]["nodeName"]}]

        await still.until(one_is_left, lambda: "the replica's pod is deleted, the other one stays as a record")
