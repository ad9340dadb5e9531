"""Accelerator classes and the limits of a namespace, on a real API server."""

import json
import time

import pytest

from fakes.operator_rig import ROOT, kubectl
from kvasir_api import names
from kvasir_kube.kinds import ACCELERATOR_CLASS, DEPLOYMENT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]
GPU = {"nodeSelector": {"gpu": "h100"}, "runtimeClassName": "nvidia"}


@pytest.fixture
async def h100(rig):
    """A class of this test's own name."""
    name = f"h100-{rig.namespace}"
    spec = {"memory": "80Gi", "pricePerHour": 400, "runtimeImage": "runtime:h100", "pod": GPU}
    await rig.client.apply(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": spec}, manager="admin")
    yield name
    await rig.client.delete(ACCELERATOR_CLASS, "", name)


async def template(rig):
    """Of the newest workload."""
    found = await rig.all(DEPLOYMENT)
    status = (await rig.service()).get("status") or {}
    current = status.get("rollout", {}).get("currentRevision")
    return next(d["spec"]["template"] for d in found if d["metadata"]["labels"][names.LABEL_REVISION] == current)


async def test_a_class_shapes_the_pods_and_a_changed_one_rolls_them(rig, h100):
    await rig.apply(resources={"accelerator": {"count": 1, "classes": ["missing", h100]}})

    async def chosen():
        return (await rig.status()).get("rollout", {}).get("acceleratorClass") == h100

    await rig.until(chosen, lambda: rig.dump("tiny"))
    pod = (await template(rig))["spec"]
    assert (pod["runtimeClassName"], pod["nodeSelector"]) == ("nvidia", {"gpu": "h100"})
    assert pod["containers"][0]["image"] == "runtime:h100"
    first = (await rig.status())["rollout"]["currentRevision"]
    kubectl(
        rig.control, "patch", "acceleratorclass", h100, "--type=merge", "-p", '{"spec":{"runtimeImage":"runtime:2"}}'
    )

    async def rolled():
        now = (await rig.status()).get("rollout", {}).get("currentRevision")
        return now != first and (await template(rig))["spec"]["containers"][0]["image"] == "runtime:2"

    await rig.until(rolled, lambda: rig.dump("tiny"))


async def test_a_class_that_appears_cures_the_fault(rig):
    name = f"late-{rig.namespace}"
    await rig.apply(resources={"accelerator": {"count": 1, "classes": [name]}})
    stalled = await rig.until_condition("Stalled")
    assert stalled["message"] == f"spec.resources.accelerator.classes: {name} does not exist"
    await rig.client.apply(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": {"memory": "24Gi"}}, manager="admin")

    async def cured():
        return (await rig.status()).get("rollout", {}).get("acceleratorClass") == name

    await rig.until(cured, lambda: rig.dump("tiny"))
    await rig.client.delete(ACCELERATOR_CLASS, "", name)


async def test_a_cheaper_class_moves_replicas_only_where_that_is_asked(rig):
    dear, cheap = f"dear-{rig.namespace}", f"cheap-{rig.namespace}"
    given = {"model": {"uri": "file:///srv/tiny", "inspect": "Never"}}
    given["resources"] = {"accelerator": {"count": 1, "classes": [cheap, dear]}}

    async def put(name, price):
        spec = {"memory": "80Gi", "pricePerHour": price, "pod": {"annotations": {"example.com/class": name}}}
        await rig.client.apply(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": spec}, manager="admin")

    async def taken():
        return (await rig.status()).get("rollout", {}).get("acceleratorClass")

    await put(dear, 9)
    await rig.apply(**given)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    uids = await rig.pod_uids()
    await put(cheap, 1)
    await rig.apply(**given, rollout={"maxSurge": 2})
    await rig.until_condition("Ready", reason="AllReplicasReady")
    await rig.heard()
    assert (await taken(), await rig.pod_uids()) == (dear, uids)
    await rig.apply(**given, rollout={"reclass": "Always"})

    async def moved():
        return await taken() == cheap and not uids & await rig.pod_uids()

    await rig.until(moved, lambda: rig.dump("tiny"))
    await rig.delete()
    for name in (dear, cheap):
        await rig.client.delete(ACCELERATOR_CLASS, "", name)


async def test_a_full_class_is_passed_over(rig):
    """The scheduler finds none that carries its label; the next class has one, and the service stays there."""
    there, full = f"there-{rig.namespace}", f"full-{rig.namespace}"
    nowhere = {"memory": "80Gi", "pod": {"nodeSelector": {"gpu": "none"}}}
    await rig.client.apply(ACCELERATOR_CLASS, {"metadata": {"name": full}, "spec": nowhere}, manager="admin")
    await rig.client.apply(
        ACCELERATOR_CLASS, {"metadata": {"name": there}, "spec": {"memory": "24Gi"}}, manager="admin"
    )
    accelerator = {"count": 1, "classes": [full, there], "fallbackSeconds": 0}
    model = {"uri": "file:///srv/tiny", "inspect": "Never"}
    await rig.apply(model=model, resources={"accelerator": accelerator})
    await rig.until_condition("CapacityLimited", reason="Unschedulable")
    assert (await rig.status())["rollout"]["acceleratorClass"] == full
    await rig.apply(model=model, resources={"accelerator": {**accelerator, "fallbackSeconds": 1}})
    await rig.until_condition("Ready", reason="AllReplicasReady")
    rollout = (await rig.status())["rollout"]
    assert (rollout["acceleratorClass"], rollout["unavailableClasses"]) == (there, [full])
    assert await rig.noted("AcceleratorClassFallback") == [
        f"{full} found no node for any replica in 1 s; the next class is tried"
    ]
    await rig.apply(model=model, replicas=2, resources={"accelerator": {**accelerator, "fallbackSeconds": 1}})
    await rig.until_condition("Ready", reason="AllReplicasReady")
    assert (await rig.status())["rollout"]["acceleratorClass"] == there
    assert len(await rig.until_pods(2)) == 2
    await rig.delete()
    for name in (there, full):
        await rig.client.delete(ACCELERATOR_CLASS, "", name)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"memory": "a lot"}, "spec.memory"),
        ({}, "spec.memory: Required"),
        ({"memory": "1Gi", "runtimeImage": "$(evil) x"}, "spec.runtimeImage"),
        ({"memory": "1Gi", "pricePerHour": -1}, "spec.pricePerHour"),
    ],
)
def test_a_bad_class_is_refused_with_its_field(control, spec, message):
    body = {"apiVersion": names.API_VERSION, "kind": names.ACCELERATOR_KIND, "metadata": {"name": "bad"}, "spec": spec}
    assert message in kubectl(control, "create", "-f", "-", check=False, text=json.dumps(body))


@pytest.fixture(scope="module")
def limited(control):
    """The policy, in force, and a namespace that it limits."""
    kubectl(control, "apply", "--server-side", "-f", str(ROOT / "manifests/base/policies/namespace-limits.yaml"))
    notes = {
        f"{names.GROUP}/max-replicas": "3",
        f"{names.GROUP}/accelerator-classes": "l4, l4-spot",
        f"{names.GROUP}/max-accelerators": "1",
    }
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "limited", "annotations": notes}}
    kubectl(control, "create", "-f", "-", text=json.dumps(body))
    deadline = time.monotonic() + 60
    while "allows 3" not in create(control, "limited", replicas=9):
        assert time.monotonic() < deadline, "the policy is not in force"
        time.sleep(0.05)
    yield "limited"
    kubectl(control, "delete", "-f", str(ROOT / "manifests/base/policies/namespace-limits.yaml"))
    kubectl(control, "delete", "namespace", "limited", "--wait=false")


def create(control, namespace, **spec):
    metadata = {"generateName": "asked-", "namespace": namespace}
    body = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata}
    body["spec"] = {"model": {"uri": "pvc://models/tiny"}, **spec}
    return kubectl(control, "create", "--dry-run=server", "-f", "-", check=False, text=json.dumps(body))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"replicas": 3}, "created"),
        ({"replicas": 4}, "spec: 4 replicas are asked for; namespace limited allows 3"),
        ({"autoscaling": {"maxReplicas": 3}}, "created"),
        ({"autoscaling": {"maxReplicas": 5}}, "spec: 5 replicas are asked for; namespace limited allows 3"),
        ({"resources": {"accelerator": {"count": 1, "classes": ["l4"]}}}, "created"),
        (
            {"resources": {"accelerator": {"count": 1, "classes": ["l4", "h100"]}}},
            "spec.resources.accelerator.classes: namespace limited allows only l4, l4-spot",
        ),
        (
            {"resources": {"accelerator": {"count": 1, "minMemory": "20Gi"}}},
            "spec.resources.accelerator.classes: namespace limited allows only l4, l4-spot",
        ),
        ({"resources": {"accelerator": {"count": 1}}}, "allows only l4, l4-spot"),
        (
            {"resources": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "eight"}]}},
            "spec.resources.resourceClaims: namespace limited limits accelerators, which a claim would pass by",
        ),
        ({}, "created"),
    ],
)
def test_a_namespace_limits_what_its_owner_may_request(control, limited, spec, message):
    assert message in create(control, limited, **spec)


def test_a_namespace_without_annotations_limits_nothing(control, limited):
    assert "created" in create(control, "default", replicas=900)


@pytest.mark.parametrize("spec", [{"count": 0, "classes": ["l4"]}, {"count": 0, "minMemory": "1Gi"}])
def test_a_class_without_an_accelerator_is_refused(control, spec):
    said = create(control, "default", resources={"accelerator": spec})
    assert "resources.accelerator.count must be above 0 where classes or minMemory are set" in said


async def test_an_edit_of_a_class_waits_for_its_turn(rig):
    """The phase is one that the API server takes; services serve on, and take the edit when they may."""
    name, services = f"edited-{rig.namespace}", ("one", "two")

    async def put(note):
        spec = {"memory": "80Gi", "pod": {"annotations": {"example.com/note": note}}}
        await rig.client.apply(ACCELERATOR_CLASS, {"metadata": {"name": name}, "spec": spec}, manager="admin")

    async def rollouts():
        return [(await rig.status(of)).get("rollout", {}) for of in services]

    await put("first")
    for of in services:
        model = {"uri": f"file:///srv/{of}", "inspect": "Never"}
        await rig.apply(of, model=model, resources={"accelerator": {"count": 1, "classes": [name]}})
    for of in services:
        await rig.until_condition("Ready", name=of, reason="AllReplicasReady")
    before, uids = [one["currentRevision"] for one in await rollouts()], await rig.pod_uids()
    rig.stop()
    rig.start("--allow-model-dir=/srv", "--fleet-max-unavailable=0")
    await put("second")

    async def wait():
        return [one.get("phase") for one in await rollouts()] == ["Waiting"] * len(services)

    await rig.until(wait, lambda: rig.dump("one"))
    assert "--fleet-max-unavailable" in (await rollouts())[0]["message"]
    for of in services:
        await rig.until_condition("Ready", name=of, reason="AllReplicasReady")
    assert await rig.pod_uids() == uids
    rig.stop()
    rig.start("--allow-model-dir=/srv")

    async def rolled():
        found = await rollouts()
        return all(one.get("currentRevision") not in ("", None, *before) for one in found) and not any(
            one.get("phase") for one in found
        )

    await rig.until(rolled, lambda: rig.dump("one"))
    for of in services:
        await rig.delete(of)
    await rig.client.delete(ACCELERATOR_CLASS, "", name)
