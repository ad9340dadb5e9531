"""What a real API server refuses: quotas, rules of a namespace, rights, a namespace that goes; and rivals of ours."""

import asyncio
import itertools
import json
import time

import pytest

from fakes.operator_rig import kubectl
from kvasir_api import names
from kvasir_kube.kinds import DEPLOYMENT, SERVICE, Kind, labels
from kvasir_operator.loop.write_conflicts import MOST_AT_ONCE, PAUSE_S

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]
QUOTA = Kind(kind="ResourceQuota", plural="resourcequotas")


async def quota(rig, **hard):
    spec = {"hard": {name.replace("_", "."): value for name, value in hard.items()}}
    where = {"namespace": rig.namespace, "name": "few"}
    await rig.client.apply(QUOTA, {"metadata": where, "spec": spec}, manager="admin")

    async def counted():
        return (await rig.client.get(QUOTA, rig.namespace, "few")).get("status", {}).get("hard") == spec["hard"]

    await rig.until(counted, lambda: "the quota is in force")


async def test_a_quota_of_pods_is_told_in_its_words_and_passes_when_it_is_raised(rig):
    await quota(rig, pods="1")
    await rig.apply(replicas=2)
    told = (
        "1 of 2 replicas ready; another pod is forbidden: "
        "exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1"
    )
    await rig.until_condition("Stalled", reason="QuotaExceeded", message=told)
    assert len(await rig.until_pods(1)) == 1
    await rig.until_condition("CapacityLimited", reason="QuotaExceeded")
    await quota(rig, pods="5")
    await rig.until_condition("Ready", reason="AllReplicasReady")
    assert [c["type"] for c in (await rig.status())["conditions"]] == ["Ready"]
    assert len(await rig.noted("Refused")) == 1


async def test_pods_that_the_rules_of_the_namespace_forbid_are_told(rig):
    label = "pod-security.kubernetes.io/enforce=restricted"
    kubectl(rig.control, "label", "namespace", rig.namespace, label)
    await rig.apply()  # a file:// model is a hostPath
    stalled = await rig.until_condition("Stalled", reason="Forbidden")
    assert 'violates PodSecurity "restricted:latest"' in stalled["message"]
    kubectl(rig.control, "label", "namespace", rig.namespace, "pod-security.kubernetes.io/enforce-")
    await rig.until_condition("Ready", reason="AllReplicasReady")


async def test_a_right_to_write_that_is_missing_is_told_and_missed_no_longer(rig):
    await rig.apply(replicas=0)
    await rig.until_condition("Ready", reason="ScaledToZero")
    role = json.loads(kubectl(rig.control, "get", "clusterrole", names.OPERATOR, "-ojson"))
    less = [
        r | {"verbs": [v for v in r["verbs"] if v != "patch"]} if "apps" in r["apiGroups"] else r for r in role["rules"]
    ]
    try:
        change(rig, less)
        await rig.apply(replicas=1)
        stalled = await rig.until_condition("Stalled", reason="Forbidden")
        assert 'cannot patch resource "deployments" in API group "apps"' in stalled["message"]
    finally:
        change(rig, role["rules"])
    await rig.until_condition("Ready", reason="AllReplicasReady")


def change(rig, rules):
    patch = json.dumps([{"op": "replace", "path": "/rules", "value": rules}])
    kubectl(rig.control, "patch", "clusterrole", names.OPERATOR, "--type=json", "-p", patch)


async def test_a_namespace_that_goes_is_let_go(rig):
    await rig.apply(replicas=1)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    mark = rig.audit_mark()
    kubectl(rig.control, "delete", "namespace", rig.namespace, "--wait=false")

    async def gone():
        found = kubectl(rig.control, "get", "namespace", rig.namespace, "--ignore-not-found", check=False)
        return not found.strip()

    await rig.until(gone, lambda: kubectl(rig.control, "get", "namespace", rig.namespace, "-oyaml", check=False), s=60)
    assert rig.running
    assert len(rig.writes_since(mark)) < 20
    assert "unexpected error" not in rig.log.read_text()


async def test_a_rival_is_told_of_and_does_not_make_us_write_without_end(rig):
    await rig.apply(replicas=1)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    ((name, _),) = [(d["metadata"]["name"], d) for d in await rig.all(DEPLOYMENT)]
    mark, limits, began = rig.audit_mark(), itertools.count(3), time.monotonic()

    async def change():
        spec = {"revisionHistoryLimit": next(limits)}
        await rig.client.merge(DEPLOYMENT, rig.namespace, name, {"spec": spec}, manager="rival")

    async def told():
        """How often it must be changed for that depends on how many changes one restoring undoes."""
        await change()
        return await rig.events("ConflictingWriter") or None

    (note,) = await rig.until(told, rig.tail)
    assert note.startswith(f"Deployment/{name} is changed repeatedly by rival")
    for _ in range(20):
        await change()
        await asyncio.sleep(0.05)
    written = len([w for w in rig.writes_since(mark) if w.resource == "deployments" and w.code < 400])
    assert MOST_AT_ONCE <= written <= MOST_AT_ONCE + pauses(began)


def pauses(began):
    """After each of which a rival's change is restored once more; none on a machine that is not busy."""
    return int((time.monotonic() - began) // PAUSE_S)


async def test_a_rival_that_takes_a_child_out_of_our_watch_is_restored_as_rarely(rig):
    """Without the label the API server reports the child as deleted."""
    await rig.apply(replicas=1)
    await rig.until_condition("Ready", reason="AllReplicasReady")
    mark, began = rig.audit_mark(), time.monotonic()
    taken = {"metadata": {"labels": {names.LABEL_PART_OF: None}}}

    async def back():
        found = await rig.client.get(SERVICE, rig.namespace, "tiny")
        return names.LABEL_PART_OF in labels(found)

    for _ in range(MOST_AT_ONCE):
        await rig.client.merge(SERVICE, rig.namespace, "tiny", taken, manager="rival")
        await rig.until(back, lambda: "the label is back")

    async def told():
        return await rig.events("ConflictingWriter") or None

    (note,) = await rig.until(told, rig.tail)
    assert note.startswith("Service/tiny is changed repeatedly")
    await rig.client.merge(SERVICE, rig.namespace, "tiny", taken, manager="rival")
    await rig.heard()
    is_back = await back()
    written = [w.verb for w in rig.writes_since(mark) if w.resource == "services" and w.code < 400]
    more = len(written) - MOST_AT_ONCE
    assert set(written) == {"patch"}
    assert is_back <= more <= pauses(began)
