"""Fixtures of the operator's tests: a control plane of their own, and on it one operator and one node of stubs per
test.

The control plane is not the shared one, since an operator that other tests install there would see these services too.
"""

import uuid

import pytest

from fakes.kubelet import FakeKubelet
from fakes.operator_rig import Rig, install, kubectl, make_namespace
from kvasir_kube.client import Client, configuration
from kvasir_kube.kinds import INFERENCE_SERVICE
from kvasir_local import binaries
from kvasir_local.control_plane import ControlPlane
from kvasir_local.say import Quiet


@pytest.fixture(scope="session")
def control(tmp_path_factory):
    """etcd, API server, controllers and scheduler, with our CRD and the operator's rights."""
    with ControlPlane(state_dir=tmp_path_factory.mktemp("control"), binaries=binaries.provide(say=Quiet())) as found:
        install(found)
        yield found


@pytest.fixture
async def rig(control, tmp_path):
    number = uuid.uuid4().int
    namespace = f"op-{number % 16**8:08x}"
    subnet = f"127.{100 + number % 100}.{number // 100 % 250}"
    async with Client(await configuration(str(control.kubeconfig))) as client:
        await make_namespace(client, namespace)
        async with FakeKubelet(client, node=namespace, subnet=subnet) as kubelet:
            found = Rig(control, client, kubelet, namespace=namespace, tmp=tmp_path)
            found.start("--allow-model-dir=/srv")
            yield found
            found.stop()
            await client.delete(INFERENCE_SERVICE, namespace, "tiny")
            kubectl(control, "delete", "node", namespace, "--wait=false")
            kubectl(control, "delete", "namespace", namespace, "--wait=false")
