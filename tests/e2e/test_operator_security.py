"""What an author of services may try, and what comes of it: faults F53 to F60, and Pod Security `restricted`."""

import json

import pytest

from fakes.operator_rig import ROOT, kubectl
from kvasir_api import names
from kvasir_kube.kinds import (
    ACCELERATOR_CLASS,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    NETWORK_POLICY,
    POD,
    SERVICE,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(150)]
# The budget comes last: it is made once there is a pod, for which the Deployment must not be another's.
CHILDREN = {kind.kind: kind for kind in (SERVICE, NETWORK_POLICY, CONTROLLER_REVISION, DEPLOYMENT, DISRUPTION_BUDGET)}
CLAIMED = {"model": {"uri": "pvc://models/tiny"}}
PORT = {"ports": [{"port": 1}]}
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"


def strict(control, spec):
    """What the API server says of a service of this spec, unknown fields being errors."""
    body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "spec": {**CLAIMED, **spec}}
    body["metadata"] = {"name": "tried", "namespace": "default"}
    return kubectl(
        control, "create", "--dry-run=server", "--validate=strict", "-f", "-", check=False, text=json.dumps(body)
    )


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "created"),
        ({"pod": {"serviceAccountName": "admin"}}, 'unknown field "spec.pod.serviceAccountName"'),
        ({"pod": {"hostNetwork": True}}, 'unknown field "spec.pod.hostNetwork"'),
        ({"pod": {"securityContext": {"runAsUser": 0}}}, 'unknown field "spec.pod.securityContext"'),
        ({"pod": {"volumes": [{"hostPath": {"path": "/"}}]}}, 'unknown field "spec.pod.volumes"'),
        ({"pod": {"env": [{"name": "LD_PRELOAD", "value": "x"}]}}, 'unknown field "spec.pod.env"'),
        ({"pod": {"shareProcessNamespace": True}}, 'unknown field "spec.pod.shareProcessNamespace"'),
        ({"pod": {"labels": {"app.kubernetes.io/name": "theirs"}}}, "spec.pod.labels"),
        ({"pod": {"annotations": {"sidecar.example/inject": "true"}}}, "spec.pod.annotations"),
        ({"image": "evil"}, 'unknown field "spec.image"'),
        ({"runtime": {"image": "evil"}}, 'unknown field "spec.runtime.image"'),
        ({"runtime": {"args": ["--host", "0.0.0.0"]}}, 'unknown field "spec.runtime.args"'),
        ({"runtime": {"extraArgs": ["x"]}}, 'unknown field "spec.runtime.extraArgs"'),
        ({"runtime": {"trustRemoteCode": True}}, 'unknown field "spec.runtime.trustRemoteCode"'),
        ({"pod": {"imagePullSecrets": [{"name": "a", "namespace": "b"}]}}, 'imagePullSecrets[0].namespace"'),
        ({"pod": {"imagePullSecrets": [{"name": "../other"}]}}, "spec.pod.imagePullSecrets[0].name"),
        ({"auth": {"secretName": "a", "namespace": "b"}}, 'unknown field "spec.auth.namespace"'),
        ({"auth": {"secretName": "../other"}}, "spec.auth.secretName"),
        ({"model": {"uri": "pvc://models/$(id)"}}, "a path of letters, digits"),
        ({"model": {"uri": "pvc://models/a b"}}, "a path of letters, digits"),
        ({"model": {"uri": "pvc://models/x;reboot"}}, "a path of letters, digits"),
        ({"model": {"uri": "pvc://models/../etc"}}, "must not climb"),
        ({"model": {"uri": "https://evil/x"}}, "and its checksum"),
        ({"model": {"uri": "ftp://evil/x"}}, "must be hf://"),
        ({"model": {**CLAIMED["model"], "servedName": "$(POD_IP)"}}, "spec.model.servedName"),
        ({"model": {**CLAIMED["model"], "servedName": "--host"}}, "spec.model.servedName"),
        ({"model": {**CLAIMED["model"], "servedName": "a\nb"}}, "spec.model.servedName"),
        ({"resources": {"cpu": "1;id"}}, "spec.resources.cpu"),
    ],
)  # fmt: skip
def test_what_a_service_may_not_say(control, spec, message):
    assert message in strict(control, spec)


async def test_labels_of_a_service_reach_neither_children_nor_pods(rig):
    body = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": "tiny",
            "namespace": rig.namespace,
            "labels": {"app": "theirs", names.LABEL_SERVICE: "another", names.LABEL_NAME: "another"},
            "annotations": {"sidecar.example/inject": "true"},
        },
        "spec": {"model": {"uri": "file:///srv/tiny"}},
    }
    kubectl(rig.control, "create", "-f", "-", text=json.dumps(body))
    await rig.until_condition("Ready")
    for kind in (*CHILDREN.values(), POD):
        for found in await rig.all(kind):
            assert "app" not in found["metadata"]["labels"]
            assert found["metadata"]["labels"][names.LABEL_SERVICE] == "tiny"
            assert "sidecar.example/inject" not in found["metadata"].get("annotations", {})


FOREIGN = {
    "Service": {"spec": PORT},
    "PodDisruptionBudget": {"spec": {"maxUnavailable": 9, "selector": {"matchLabels": {"app": "theirs"}}}},
    "NetworkPolicy": {"spec": {"podSelector": {"matchLabels": {"app": "theirs"}}}},
    "ControllerRevision": {"data": {"theirs": True}, "revision": 7},
    "Deployment": {
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "theirs"}},
            "template": {
                "metadata": {"labels": {"app": "theirs"}},
                "spec": {"containers": [{"name": "theirs", "image": "theirs"}]},
            },
        }
    },
}


@pytest.mark.parametrize("labelled", [False, True], ids=["bare", "with our labels"])
async def test_objects_of_somebody_else_are_neither_changed_nor_deleted(still, labelled):
    rig = still
    # No watch tells of what does not carry our label.
    rig.start("--allow-model-dir=/srv", "--resync=1")
    await rig.apply(replicas=1)
    await rig.until_condition("Ready")
    ours = {kind: (await rig.all(found))[0]["metadata"] for kind, found in CHILDREN.items()}
    await rig.delete()

    async def gone():
        return not any([await rig.all(found) for found in (*CHILDREN.values(), POD)])

    await rig.until(gone, lambda: "everything is collected")
    for kind, was in ours.items():
        metadata = {"namespace": rig.namespace, "name": was["name"], **({"labels": was["labels"]} if labelled else {})}
        await rig.client.apply(CHILDREN[kind], {"metadata": metadata, **FOREIGN[kind]}, manager="somebody")
    theirs = {kind: await rig.client.get(CHILDREN[kind], rig.namespace, was["name"]) for kind, was in ours.items()}
    await rig.apply(replicas=1)
    for kind, was in ours.items():

        async def named(wanted=f"{kind}/{was['name']}"):
            found = [c for c in (await rig.status()).get("conditions", ()) if c["type"] == "Stalled"]
            return any(wanted in c["message"] and "does not belong to this service" in c["message"] for c in found)

        await rig.until(named, lambda kind=kind: f"{kind}: {rig.dump('tiny')}")
        now = await rig.client.get(CHILDREN[kind], rig.namespace, was["name"])
        assert (now["metadata"]["uid"], now.get("spec")) == (theirs[kind]["metadata"]["uid"], theirs[kind].get("spec"))
        assert "ownerReferences" not in now["metadata"]
        assert names.MANAGER not in {entry["manager"] for entry in now["metadata"]["managedFields"]}
        await rig.client.delete(CHILDREN[kind], rig.namespace, was["name"])
    await rig.until_condition("Ready")


async def test_a_forged_status_changes_nothing_and_is_corrected(rig):
    await rig.apply(replicas=2)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    uids, true = await rig.pod_uids(), await rig.status()
    lie = {
        "replicas": 0,
        "readyReplicas": 99,
        "desiredReplicas": 0,
        "conditions": [
            {**true["conditions"][0], "status": "False", "reason": "InvalidSpec", "message": "lies"},
        ],
        "rollout": {"currentRevision": "0000000000", "lastGoodRevision": "0000000000", "step": 9, "message": "lies"},
        "coldStart": {"seconds": 9},
        "autoscaling": {"desiredReplicas": 9, "message": "lies"},
    }
    assert not {"autoscaling"} & set(true)
    assert not {"step", "message"} & set(true["rollout"])
    patch = json.dumps({"status": lie})
    where = ("infsvc", "tiny", f"--namespace={rig.namespace}", "--subresource=status", "--type=merge", "-p", patch)
    kubectl(rig.control, "patch", *where)

    async def corrected():
        now = (await rig.service())["status"]  # a lie need not keep the rules of statuses
        same = ("replicas", "readyReplicas", "desiredReplicas")
        revision = now.get("rollout", {}).get("currentRevision") == true["rollout"]["currentRevision"]
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in now.get("conditions", ()))
        lies = "lies" in json.dumps(now) or "autoscaling" in now or "step" in now["rollout"]
        return all(now.get(name) == true[name] for name in same) and revision and ready and not lies

    await rig.until(corrected, lambda: rig.dump("tiny"))
    await rig.heard()
    assert await rig.pod_uids() == uids


SHAPES = {
    "on the CPU": {},
    "on an accelerator": {"resources": {"accelerator": {"count": 1}}},
    "of a class": {"resources": {"accelerator": {"count": 1, "classes": ["{class}"]}}},
    "with knobs": {"pod": {"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}]}},
}


async def test_every_pod_is_restricted(still):
    """In a namespace that enforces it: what is not restricted would not be made at all."""
    rig = still
    kubectl(rig.control, "label", "namespace", rig.namespace, RESTRICTED)
    await rig.claim()
    name = f"c-{rig.namespace}"
    await rig.client.apply(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": {"memory": "1Gi"}}, manager="admin")
    rig.start()
    for number, spec in enumerate(SHAPES.values()):
        await rig.apply(f"s{number}", **CLAIMED, **json.loads(json.dumps(spec).replace("{class}", name)))

    async def made():
        found = {pod["metadata"]["labels"].get(names.LABEL_SERVICE) for pod in await rig.all(POD)}
        return found >= {f"s{number}" for number in range(len(SHAPES))}

    await rig.until(made, lambda: kubectl(rig.control, "get", "events,pods", f"--namespace={rig.namespace}"))
    assert all(pod["spec"]["automountServiceAccountToken"] is False for pod in await rig.all(POD))
    await rig.client.delete(ACCELERATOR_CLASS, "", name)


async def test_pods_of_operator_and_gateway_are_restricted(still):
    """The base enforces it on its own namespace; here it is enforced on a namespace of the test's own."""
    rig = still
    kubectl(rig.control, "label", "namespace", rig.namespace, RESTRICTED)
    for part in ("operator", "gateway"):
        for name in ("serviceaccount", "deployment"):
            text = (ROOT / "manifests" / "base" / part / f"{name}.yaml").read_text()
            mine = text.replace(f"namespace: {names.SYSTEM_NAMESPACE}", f"namespace: {rig.namespace}")
            said = kubectl(rig.control, "apply", "--server-side", "-f", "-", text=mine)
            assert "would violate PodSecurity" not in said

    async def made():
        found = [pod["metadata"]["labels"][names.LABEL_NAME] for pod in await rig.all(POD)]
        return sorted(found) == [names.GATEWAY, names.GATEWAY, names.OPERATOR, names.OPERATOR]

    await rig.until(made, lambda: "two pods of each")
