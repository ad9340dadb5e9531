"""A process node of our own on the shared control plane, with short back-off, that tests may kill and start again."""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

from fakes.node_bench import NodeBench
from kvasir_local import credentials, kubectl
from kvasir_local.access import node_roles
from kvasir_local.control_plane import ControlPlane

if TYPE_CHECKING:
    from kubernetes import client

NODE_INDEX: Final = 100
"""Apart from the nodes of the shared fixture; each test worker takes the next one."""


@pytest.fixture(scope="module")
def module_node(cluster: ControlPlane, api: "client.ApiClient") -> Iterator[NodeBench]:
    index = NODE_INDEX + int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    name = f"bench-{index}"
    kubectl.apply(cluster.kubectl, node_roles())
    credentials.write_node(cluster.paths, cluster.state.network, name)
    found = NodeBench(cluster, api, name, index)
    found.start()
    yield found
    found.stop()
    found.core.delete_node(name)


@pytest.fixture
def bench(module_node: NodeBench, namespace: str) -> NodeBench:
    """The node with a fresh namespace."""
    module_node.namespace = namespace
    return module_node
