"""A model in a claim that one node at a time may have, which the controller manager attaches and refuses to attach."""

import shutil

import pytest

from kvasir_local import kubectl
from kvasir_local.demo.scenario import MODEL
from outside.real_nodes import csi
from outside.real_nodes.nodes import cordoned, node_of
from outside.real_nodes.service import StreamLoad

pytestmark = pytest.mark.timeout(900)

CLAIM = {
    "accessModes": ["ReadWriteOnce"],
    "storageClassName": "",
    "resources": {"requests": {"storage": "64Mi"}},
}


@pytest.fixture
def attached(real, fresh, tmp_path):
    """spec.model of a service whose claim is a volume of the driver; it is not attached before a pod needs it."""
    shutil.copytree(MODEL, tmp_path / "disk" / "tiny")
    name = f"attached-{fresh.namespace}"
    volume = {
        "accessModes": CLAIM["accessModes"],
        "capacity": CLAIM["resources"]["requests"],
        "storageClassName": "",
        "csi": {"driver": csi.DRIVER, "volumeHandle": name},
        "claimRef": {"namespace": fresh.namespace, "name": "models"},
        "persistentVolumeReclaimPolicy": "Retain",
    }
    with csi.serving(real, tmp_path / "disk"):
        fresh.put({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}, "spec": volume})
        claim = {"metadata": {"name": "models"}, "spec": {**CLAIM, "volumeName": name}}
        fresh.put({"apiVersion": "v1", "kind": "PersistentVolumeClaim", **claim})
        yield {"uri": "pvc://models/tiny", "servedName": fresh.namespace}
        fresh.kubectl("delete", "infsvc", "tiny", "--wait=false", "--ignore-not-found")
        fresh.until(lambda: not fresh.items("pods"), "no pod has it mounted")
        fresh.kubectl("delete", "pvc", "models", "--wait=false")
        kubectl.run(real.kubectl, "delete", "pv", name, "--wait=false")


def test_a_claim_of_one_node_that_another_one_needs_is_named_and_its_replicas_serve_on_one(real, fresh, attached):
    with cordoned(real, "kvasir-1"):
        fresh.apply(replicas=1, model=attached)
        fresh.until_ready()
    (holder,) = fresh.pods()
    with StreamLoad(fresh) as load:
        with cordoned(real, "kvasir-0"):
            fresh.apply(replicas=2, model=attached)
            limited = fresh.until(
                lambda: (
                    fresh.conditions().get("CapacityLimited", {}).get("status") == "True"
                    and fresh.conditions()["CapacityLimited"]
                ),
                "the claim that cannot be had is named",
            )
            (waits,) = [pod for pod in fresh.pods() if node_of(pod) == "kvasir-1"]
        assert limited["reason"] == "VolumeInUse", limited
        for word in (waits["metadata"]["name"], "kvasir-1", holder["metadata"]["name"], "kvasir-0", "ReadWriteMany"):
            assert word in limited["message"], limited["message"]
        said = fresh.kubectl("get", "events", f"--field-selector=involvedObject.name={waits['metadata']['name']}")
        assert "Multi-Attach error" in said
        load.until_more()
        with cordoned(real, "kvasir-1"):  # as the message advises: all replicas on one node
            fresh.kubectl("delete", "pod", waits["metadata"]["name"], "--wait=false")
            fresh.until_ready()
        load.until_more()
    assert set(load.ends) == {"length"}
    assert [node_of(pod) for pod in fresh.pods()] == ["kvasir-0"] * 2
    assert holder["metadata"]["uid"] in fresh.uids()
