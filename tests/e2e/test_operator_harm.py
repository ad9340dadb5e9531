"""Harm from outside of the operator: a second one, an API server that is away or busy, quotas, admission, nodes and
namespaces that go."""

import asyncio
import contextlib
import json
import os

import pytest

from fakes import operator_rig
from fakes.operator_rig import Rig, kubectl
from kvasir_kube.kinds import CONTROLLER_REVISION, NAMESPACE, POD

AWAY_S = float(os.environ.get("KVASIR_AWAY_S", "6"))
"""Five minutes by `make test-away`."""
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180 + AWAY_S)]
FLAGS = ("--allow-model-dir=/srv",)


async def apply_json(rig, body):
    kubectl(rig.control, "apply", "--server-side", f"--namespace={rig.namespace}", "-f", "-", text=json.dumps(body))


async def test_two_operators_without_a_lease_end_alike_and_come_to_rest(rig, tmp_path):
    """F2: the way round the Lease that a wrong flag opens."""
    (tmp_path / "second").mkdir()
    second = Rig(rig.control, rig.client, rig.kubelet, namespace=rig.namespace, tmp=tmp_path / "second")
    second.start(*FLAGS)
    try:
        mark = rig.audit_mark()
        await rig.apply(replicas=3)
        await rig.until_condition("Ready", reason="AllReplicasReady")
        await rig.apply(replicas=2, runtime={"blockSize": 32})
        await rig.until_condition("Ready", reason="AllReplicasReady")
        await rig.until_pods(2)
        await rig.until(lambda: quiet(rig), lambda: "rest")
        assert len(await rig.deployments()) == 1
        assert len(await rig.all(CONTROLLER_REVISION)) == 2
        written = [w for w in rig.writes_since(mark) if w.resource != "events"]
        assert len(written) < 100, "two operators fight"
        assert rig.running
        assert second.running
    finally:
        second.stop()


async def quiet(rig):
    mark = rig.audit_mark()
    await passed(4.0)
    return not rig.writes_since(mark)


async def passed(seconds):
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await asyncio.Event().wait()


@pytest.fixture
async def proxied(still):
    """A rig behind a proxy, with a service of two replicas."""
    async with operator_rig.proxied(still, *FLAGS, replicas=2) as proxy:
        yield still, proxy


BUSY_S = 6.0


async def test_an_api_server_that_is_away_changes_no_pod_and_is_not_stormed(proxied):
    """F4: pods and their number stay, requests are few, and what was asked for meanwhile is done afterwards."""
    rig, proxy = proxied
    uids = await rig.pod_uids()
    with proxy.away() as tried:
        kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=3", f"--namespace={rig.namespace}")
        for pod in rig.kubelet.of():
            pod.set_state(running=1)
        await passed(AWAY_S)
        refused = dict(tried)
    assert rig.running
    assert await rig.pod_uids() == uids
    assert max(refused.values()) <= 10 + AWAY_S, f"one path is asked for too often: {refused}"
    mark = rig.audit_mark()

    async def three():
        return len(rig.kubelet.of()) == 3

    # What broke off begins again within its longest pause, of a minute.
    await rig.until(three, lambda: rig.dump("tiny"), s=60 + AWAY_S)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    assert uids < await rig.pod_uids()
    written = [w for w in rig.writes_since(mark) if w.resource != "events"]
    assert len(written) <= 12, f"a storm: {written}"


async def test_a_busy_api_server_is_left_alone_for_as_long_as_it_asks(proxied):
    """F7: Retry-After is heeded, so that few writes are tried while all are refused."""
    rig, proxy = proxied
    with proxy.busy(retry_after_s=2) as tried:
        kubectl(rig.control, "scale", "infsvc/tiny", "--replicas=3", f"--namespace={rig.namespace}")
        await passed(BUSY_S)
        refused = dict(tried)
    assert sum(refused.values()) >= 1
    assert max(refused.values()) <= 1 + BUSY_S / 2, refused
    assert len(await rig.until_pods(3)) == 3
    assert rig.running


async def test_a_webhook_of_others_that_is_down_is_told_and_its_end_is_enough(rig):
    """F13: one that fails closed for the pods of this namespace."""
    name = f"down-{rig.namespace}"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    hook = {
        "name": "down.example.com",
        "clientConfig": {"url": "https://127.0.0.1:9/"},
        "rules": rules,
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": rig.namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    kind = "ValidatingWebhookConfiguration"
    body = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
    await apply_json(rig, {**body, "webhooks": [hook]})
    try:
        await rig.apply(replicas=1)

        async def told():
            words = " ".join(c["message"] for c in (await rig.status()).get("conditions", ()))
            return "down.example.com" in words

        await rig.until(told, lambda: rig.dump("tiny"))
    finally:
        kubectl(rig.control, "delete", kind, name)
    await rig.until_condition("Ready", reason="AllReplicasReady")


async def test_a_namespace_goes_with_its_services_although_no_operator_runs(rig):
    """F12: nothing of ours holds it up."""
    await rig.apply(replicas=2)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    rig.stop()
    kubectl(rig.control, "delete", "namespace", rig.namespace, "--wait=false")

    async def gone():
        return rig.namespace not in {n["metadata"]["name"] for n in (await rig.client.list(NAMESPACE)).items}

    await rig.until(gone, lambda: kubectl(rig.control, "get", "namespace", rig.namespace, "-oyaml"), s=60)


async def test_pods_of_a_lost_node_are_no_capacity_and_are_replaced(rig):
    """F18: the node's agent is silent, its pods are marked not ready and then evicted, and never end."""
    await rig.apply(replicas=2)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    lost = await rig.pod_uids()
    async with rig.second_node() as other:
        await rig.kubelet.lose()

        async def noticed():
            status = await rig.status()
            return status.get("readyReplicas") == 0 and any(
                c["type"] == "Ready" and c["status"] == "False" for c in status.get("conditions", ())
            )

        await rig.until(noticed, lambda: rig.dump("tiny"))
        kubectl(rig.control, "cordon", rig.namespace)
        for pod in await rig.all(POD):
            await rig.client.delete(POD, rig.namespace, pod["metadata"]["name"])

        async def replaced():
            status = await rig.status()
            return status.get("readyReplicas") == 2 and len(other.of()) == 2

        await rig.until(replaced, lambda: rig.dump("tiny"))
        left = [p for p in await rig.all(POD) if p["metadata"]["uid"] in lost]
        assert len(left) == 2, "their node never said that they ended"
        assert all(p["metadata"].get("deletionTimestamp") for p in left)
        for pod in left:
            await rig.client.delete(POD, rig.namespace, pod["metadata"]["name"], grace_s=0)
