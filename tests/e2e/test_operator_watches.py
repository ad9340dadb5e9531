"""Watches that the API server refuses while the operator runs: it goes on, says so, and later hears again."""

import json

import pytest

from fakes import operator_rig
from fakes.fault_proxy import Fault
from fakes.operator_rig import ROOT, kubectl
from kvasir_api import names
from kvasir_kube.kinds import ACCELERATOR_CLASS, INFERENCE_SERVICE, POD

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
FLAGS = ("--allow-model-dir=/srv", "--resync=3600")
"""No list helps the watches out."""
CLASSES = f"{names.ACCELERATOR_PLURAL}.{names.GROUP}"


@pytest.fixture
async def proxied(still):
    """A rig that has one service, and a proxy that can cut its watches."""
    async with operator_rig.proxied(still, *FLAGS, replicas=1) as proxy:
        yield still, proxy


async def said(rig, words):
    return words in rig.log.read_text()


async def cured_by_a_class(rig, name):
    """A service that waits for a class gets it when it appears, which only a watch can tell."""
    await rig.apply("waits", resources={"accelerator": {"count": 1, "classes": [name]}})
    await rig.until_condition("Stalled", name="waits")
    await rig.client.apply(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": {"memory": "24Gi"}}, manager="admin")

    async def cured():
        return (await rig.status("waits")).get("rollout", {}).get("acceleratorClass") == name

    await rig.until(cured, lambda: rig.dump("waits"), s=90)
    await rig.client.delete(ACCELERATOR_CLASS, "", name)
    await rig.delete("waits")


async def test_a_right_that_is_taken_away_costs_one_kind_until_it_is_given_back(proxied):
    rig, proxy = proxied
    role = json.loads(kubectl(rig.control, "get", "clusterrole", names.OPERATOR, "-ojson"))
    less = [r for r in role["rules"] if names.ACCELERATOR_PLURAL not in r["resources"]]
    less.append({"apiGroups": [names.GROUP], "resources": [names.PLURAL], "verbs": ["list", "watch"]})
    whole = [{"op": "replace", "path": "/rules", "value": role["rules"]}]
    try:
        change(rig, [{"op": "replace", "path": "/rules", "value": less}])
        proxy.arm(Fault(kind="watches cut", write=1))
        await rig.apply(replicas=2)
        await rig.until(lambda: said(rig, "watches: watcher for acceleratorclasses"), rig.tail)
        await rig.until_condition("Ready", reason="AllReplicasReady")
        assert len(await rig.until_pods(2)) == 2
    finally:
        change(rig, whole)
    await cured_by_a_class(rig, f"later-{rig.namespace}")
    assert rig.running


def change(rig, patch):
    kubectl(rig.control, "patch", "clusterrole", names.OPERATOR, "--type=json", "-p", json.dumps(patch))


async def test_a_kind_that_is_uninstalled_and_installed_again_is_heard_again(proxied):
    rig, _ = proxied
    kubectl(rig.control, "delete", "crd", CLASSES)
    await rig.until(lambda: said(rig, "watches:"), rig.tail, s=60)
    kubectl(rig.control, "apply", "--server-side", "-f", str(ROOT / "crds" / f"{names.ACCELERATOR_PLURAL}.yaml"))
    kubectl(rig.control, "wait", "--for=condition=Established", f"crd/{CLASSES}", "--timeout=60s")
    await cured_by_a_class(rig, f"again-{rig.namespace}")
    assert rig.running


async def test_what_a_late_watch_knows_is_written_to_no_other_service_of_the_name(proxied):
    """The status of the one that is gone has a generation that the new one has not reached: `rig.status` tells."""
    rig, proxy = proxied
    await rig.apply(replicas=1, runtime={"blockSize": 32})
    await rig.until_condition("Ready", reason="AllReplicasReady")

    async def alone():
        return len(await rig.all(POD)) == 1

    await rig.until(alone, lambda: rig.dump("tiny"))
    await rig.heard()

    async def gone():
        return not await rig.all(INFERENCE_SERVICE)

    async def tried():
        await rig.status()
        return any(write.endswith("/tiny/status") for write in proxy.writes)

    with proxy.late():
        await rig.delete()
        await rig.until(gone, lambda: "the end of the service")
        await rig.apply(replicas=1)
        proxy.arm(None)
        for pod in rig.kubelet.of():
            pod.set_state(fallback="the library is missing")  # something to report, while they are there
        await rig.until(tried, lambda: f"a status, have {proxy.writes}")
        await rig.status()
    assert (await rig.until(rig.status, lambda: rig.dump("tiny")))["observedGeneration"] == 1
