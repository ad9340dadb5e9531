"""What the picker keeps of the objects that it watches is what routing reads."""

import asyncio

import pytest

from fakes.cluster import FakeCluster
from fakes.gateway import pod, service
from fakes.pod_owners import controller, workloads
from kvasir_api import names
from kvasir_gateway import parsed_objects, routing_table
from kvasir_gateway.picker.sources import InformerSource
from kvasir_kube import kinds

OURS = "uid-default-s"


@pytest.fixture
async def objects():
    made = FakeCluster()
    served = service("s", model="m")
    await made.put(kinds.INFERENCE_SERVICE, served)
    for kind, found in zip((kinds.DEPLOYMENT, kinds.REPLICA_SET), workloads(served), strict=True):
        await made.put(kind, {"metadata": found["metadata"]})
    return made


async def table(objects):
    """As the picker builds it of what the informers hold after their first lists."""
    source = InformerSource(objects, namespace="")
    task = asyncio.create_task(source.run())
    try:
        async with asyncio.timeout(60):
            await source.wait_synced()
        return routing_table.build(source.services(), source.pods(), source.workloads())
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"ready": False, "started": True},
        {"ready": False},
        {"draining": True},
        {"deleted": True},
        {"annotations": {names.ANNOTATION_SERVING_ROLE: names.SERVING_ROLE_PREFILL}, "revision": "r"},
    ],
    ids=["ready", "started", "starting", "draining", "terminating", "for prompts"],
)
async def test_a_pod_is_the_same_endpoint_as_its_whole_object(objects, fields):
    whole = pod("s", "p", ip="10.0.0.1", http=7000, ops=7001, **fields)
    await objects.put(kinds.POD, whole)
    assert (await table(objects)).endpoints() == (parsed_objects.endpoint_of(whole),)


async def test_a_pod_belongs_to_the_service_of_its_replica_sets_deployment(objects):
    for name, above in (("ours", f"{OURS}-replica-set"), ("forged", "no-such")):
        made = pod("s", name)
        made["metadata"]["ownerReferences"] = [controller(kinds.REPLICA_SET, above)]
        await objects.put(kinds.POD, made)
    assert [endpoint.pod for endpoint in (await table(objects)).endpoints()] == ["ours"]


async def test_names_are_those_of_the_whole_object(objects):
    named = service("t")
    named["spec"]["model"]["aliases"] = ["small"]
    await objects.put(kinds.INFERENCE_SERVICE, named)
    await objects.put(kinds.INFERENCE_SERVICE, service("u", model="x") | {"status": {"refusedNames": ["x"]}})
    assert set((await table(objects)).by_model) == {"m", "t", "small", "default/u"}


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, ["http://10.0.0.5:9081"]),
        ({"account": "default"}, []),
        ({"namespace": "mine"}, []),
        ({"controlled": False}, []),
        ({"ip": None}, []),
        ({"deleted": True}, ["http://10.0.0.5:9081"]),
        ({"phase": "Failed"}, []),
        ({"phase": "Succeeded"}, []),
    ],
    ids=["ours", "another account", "another namespace", "made by hand", "no address", "leaving", "evicted", "ended"],
)
async def test_gateways_are_those_of_the_installation(fields, found):
    """As the operator believes them: what anyone may label is none."""
    objects = FakeCluster()
    await objects.put(kinds.POD, gateway_pod(**fields))
    source = InformerSource(objects, namespace="", gateway_namespace="kvasir-system")
    task = asyncio.create_task(source.run())
    try:
        async with asyncio.timeout(60):
            await source.wait_synced()
            await source.gateways_listed()
        assert list(source.gateways()) == found
    finally:
        task.cancel()
        await asyncio.wait([task])


def gateway_pod(
    *,
    namespace="kvasir-system",
    account="kvasir-gateway",
    controlled=True,
    ip="10.0.0.5",
    deleted=False,
    phase="Running",
):
    """A gateway's pod as the API server gives it."""
    metadata = {"namespace": namespace, "name": "g", "uid": "g", "labels": {names.LABEL_NAME: names.GATEWAY}}
    if controlled:
        metadata["ownerReferences"] = [controller(kinds.REPLICA_SET, "r")]
    if deleted:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    ports = [{"name": "state", "containerPort": 9081}]
    spec = {"serviceAccountName": account, "containers": [{"name": "picker", "ports": ports}]}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, "podIP": ip}}
