"""A CSI driver whose volume one node at a time may have, so that the controller manager attaches it and refuses to.

A volume is a directory of this machine. Each kubelet finds the driver's socket and has it mount the directory for a
pod; what a storage system answers an attachment with is written by a thread, at once.
"""

# ruff: noqa: N802 - its methods have the protocol's names

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from kvasir_local import kubectl
from kvasir_local.control_plane import ControlPlane
from kvasir_local.kubelet import mounts
from kvasir_local.kubelet.network import BridgeNetwork

DRIVER: Final = "test.csi.kvasir.dev"
_POLL_S: Final = 0.5


class _NodePlugin:
    """The two services that a kubelet calls. directory: what is mounted."""

    def __init__(self, node: str, socket: Path, directory: Path) -> None:
        self._node, self._socket, self._directory = node, socket, directory
        self._csi, self._csi_services = _compiled("csi")
        self._plugins, self._plugin_services = _compiled("plugin_registration")
        self.registered = threading.Event()

    @contextlib.contextmanager
    def served(self) -> Iterator[None]:
        server = grpc.server(ThreadPoolExecutor(2))
        self._csi_services.add_NodeServicer_to_server(self, server)
        self._plugin_services.add_RegistrationServicer_to_server(self, server)
        self._socket.unlink(missing_ok=True)
        server.add_insecure_port(f"unix://{self._socket}")
        server.start()
        try:
            yield
        finally:
            server.stop(grace=5).wait()
            self._socket.unlink(missing_ok=True)

    def GetInfo(self, request: Any, context: Any) -> Any:
        return self._plugins.PluginInfo(
            type="CSIPlugin", name=DRIVER, endpoint=str(self._socket), supported_versions=["1.0.0"]
        )

    def NotifyRegistrationStatus(self, request: Any, context: Any) -> Any:
        assert request.plugin_registered, request.error
        self.registered.set()
        return self._plugins.RegistrationStatusResponse()

    def NodeGetInfo(self, request: Any, context: Any) -> Any:
        return self._csi.NodeGetInfoResponse(node_id=self._node)

    def NodeGetCapabilities(self, request: Any, context: Any) -> Any:
        return self._csi.NodeGetCapabilitiesResponse()

    def NodePublishVolume(self, request: Any, context: Any) -> Any:
        target = Path(request.target_path)
        if not mounts.is_mount(target):
            target.mkdir(exist_ok=True)
            subprocess.run(["mount", "--bind", str(self._directory), str(target)], check=True)
        return self._csi.NodePublishVolumeResponse()

    def NodeUnpublishVolume(self, request: Any, context: Any) -> Any:
        target = Path(request.target_path)
        if mounts.is_mount(target):
            mounts.unmount(target)
        if target.exists():
            target.rmdir()
        return self._csi.NodeUnpublishVolumeResponse()


@contextlib.contextmanager
def serving(cluster: ControlPlane, directory: Path) -> Iterator[None]:
    """The driver on every node while the block is open: end the pods with its volumes in it."""
    network = cluster.state.network.kubelets
    assert network is not None
    with contextlib.ExitStack() as stack:
        for node in cluster.state.nodes:
            plugin = _NodePlugin(node.name, _socket(network, node.index), directory)
            stack.enter_context(plugin.served())
            assert plugin.registered.wait(60), f"the kubelet of {node.name} does not find the driver"
        over = threading.Event()
        attaching = threading.Thread(target=_attach, args=(cluster.kubectl, over))
        attaching.start()
        stack.callback(attaching.join)
        stack.callback(over.set)
        yield


def _socket(network: BridgeNetwork, node: int) -> Path:
    return network.run_dir(node) / "kubelet" / "plugins_registry" / f"{DRIVER}.sock"


def _attach(program: list[str], over: threading.Event) -> None:
    """Answers attachments as a storage system that attaches at once. Without finalizers a detachment needs none."""
    patch = json.dumps({"status": {"attached": True}})
    while not over.wait(_POLL_S):
        found = json.loads(kubectl.run(program, "get", "volumeattachments", "--output=json"))["items"]
        for name in (item["metadata"]["name"] for item in found if not (item.get("status") or {}).get("attached")):
            kubectl.attempt(
                program, "patch", "volumeattachment", name, "--subresource=status", "--type=merge", f"--patch={patch}"
            )


def _compiled(name: str) -> Any:
    """Messages and services of a .proto beside this file."""
    return grpc.protos_and_services(f"outside/real_nodes/{name}.proto")
