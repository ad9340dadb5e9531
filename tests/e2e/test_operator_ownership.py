"""A field that a later operator no longer applies goes, although a creation and not an apply had set it."""

import uuid

import pytest

from fakes.operator_rig import make_namespace
from kvasir_api import names
from kvasir_kube.client import Client, configuration
from kvasir_kube.kinds import SERVICE, Json, key, labels
from kvasir_operator.loop.field_ownership import owned_by_apply

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(60)]


def manifest(namespace: str, *ports: int, **marks: str) -> Json:
    spec: Json = {"ports": [{"name": f"p{port}", "port": port, "protocol": "TCP"} for port in ports]}
    metadata: Json = {"name": "tiny", "namespace": namespace, "labels": marks}
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("applied_before", [False, True])
async def test_a_port_and_a_label_that_were_created_go_when_they_are_no_longer_applied(control, applied_before):
    async with Client(await configuration(str(control.kubeconfig))) as client:
        namespace = f"own-{uuid.uuid4().hex[:8]}"
        await make_namespace(client, namespace)
        made = await client.create(SERVICE, manifest(namespace, 80, 81, old="1", kept="1"), manager=names.MANAGER)
        if applied_before:
            await client.apply(SERVICE, manifest(namespace, 80, 81, old="2", kept="1"), manager=names.MANAGER)
        found = await client.get(SERVICE, *key(made))
        version = found["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version, "managedFields": owned_by_apply(found, names.MANAGER)}}
        await client.merge(SERVICE, *key(made), patch, manager=names.MANAGER)
        left = await client.apply(SERVICE, manifest(namespace, 80, kept="1"), manager=names.MANAGER)
        assert ([port["port"] for port in left["spec"]["ports"]], labels(left)) == ([80], {"kept": "1"})
        assert owned_by_apply(left, names.MANAGER) == []
