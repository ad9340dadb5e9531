"""Fixtures of the operator's tests: a control plane of their own, and on it one operator and one node of stubs per
test.

The control plane is not the shared one, since an operator that other tests install there would see these services too.
"""

import os
import time

import pytest

from fakes.life import DEADLINE_S, SAMPLE, Life
from fakes.operator_rig import install, standing
from kvasir_kube.client import Client, configuration
from kvasir_local import binaries, kubectl
from kvasir_local.control_plane import ControlPlane
from kvasir_local.demo.scenario import put_model
from kvasir_local.progress import SilentProgress


@pytest.fixture(scope="session")
def control(tmp_path_factory, pytestconfig):
    """etcd, API server, controllers and scheduler, with our CRD and the operator's rights; several workers share one,
    which ends with the process that started them."""
    base, shared = tmp_path_factory.getbasetemp(), hasattr(pytestconfig, "workerinput")
    found = ControlPlane(
        state_dir=(base.parent if shared else base) / "control",
        binaries=binaries.provide(progress=SilentProgress()),
        owner=os.getppid() if shared else os.getpid(),
    )
    found.start()
    install(found)
    yield found
    if not shared:
        found.stop()


@pytest.fixture
async def still(control, tmp_path):
    """One namespace with a node of stubs; its operator is not started yet."""
    async with standing(control, tmp_path) as found:
        yield found


@pytest.fixture
async def rig(still):
    """The same with its operator running."""
    still.start("--allow-model-dir=/srv")
    return still


@pytest.fixture
async def life(installed: ControlPlane):
    """A namespace with a model on everything real."""
    namespace = f"life-{time.time_ns() % 10**9}"
    kubectl.run(installed.kubectl, "create", "namespace", namespace)
    async with Client(await configuration(str(installed.kubeconfig))) as client:
        await put_model(client, SAMPLE, namespace=namespace, deadline_s=DEADLINE_S)
    yield Life(installed, namespace)
    kubectl.run(installed.kubectl, "delete", "namespace", namespace, "--wait=false")
