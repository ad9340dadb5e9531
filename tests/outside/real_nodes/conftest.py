"""The cluster of `make test-kubelet`, which that has started, and one service on it that tests share."""

import os
from pathlib import Path

import pytest

from kvasir_local.control_plane import ControlPlane
from outside.real_nodes.service import RealService


@pytest.fixture(scope="session")
def real():
    """A cluster with a kubelet, operator and gateway: KVASIR_STATE_DIR, as `kvasir local up --kubelet` made it."""
    found = ControlPlane(state_dir=Path(os.environ["KVASIR_STATE_DIR"]))
    assert found.state.network.kubelets is not None, f"{found.paths.root} has process nodes"
    return found


@pytest.fixture(scope="session")
def served(real):
    """A Ready service with one replica, which no test ends."""
    service = RealService(real, "served")
    service.put_model()
    service.apply()
    service.until_ready()
    return service


@pytest.fixture
def fresh(real, request):
    """A namespace with a model, for one test."""
    service = RealService(real, request.node.name.replace("_", "-")[:50].strip("-"))
    service.put_model()
    yield service
    service.delete()
