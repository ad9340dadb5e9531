"""A process node of our own on the shared control plane, with short back-off, that tests may kill and start again."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kvasir_local import kubectl
from kvasir_local.control_plane import ControlPlane

if TYPE_CHECKING:
    from kubernetes import client

DEADLINE_S = 60.0
T = TypeVar("T")


def until(look: Callable[[], T], what: str = "it") -> T:
    """The first true answer of `look`; fails after the deadline with the last one."""
    deadline = time.monotonic() + DEADLINE_S
    while not (answer := look()):
        assert time.monotonic() < deadline, f"{what} did not come true in {DEADLINE_S:g} s; last: {answer!r}"
        time.sleep(0.05)
    return answer


class NodeBench:
    """One process node and the namespace of one test."""

    def __init__(self, cluster: ControlPlane, api: "client.ApiClient", name: str, index: int) -> None:
        from kubernetes import client

        self.cluster, self.name = cluster, name
        self.core = client.CoreV1Api(api)
        self.state_dir = cluster.paths.node(name)
        network = cluster.state.network
        self._addresses = ["--pod-cidr", network.pod_cidr(index), "--host-ip", network.node_address]
        self._process: subprocess.Popen[bytes] | None = None
        self._api = api
        self.namespace = ""

    def start(self) -> None:
        """Start the node process; returns when the Node is Ready and serves."""
        command = [sys.executable, "-m", "kvasir_local.node", "--kubeconfig", str(self.state_dir / "kubeconfig")]
        command += ["--node-name", self.name, "--state-dir", str(self.state_dir), "--fake-gpus", "2"]
        command += [*self._addresses, "--backoff-base", "1"]
        self.log = self.cluster.paths.logs / f"node-{self.name}.log"
        started = self._serving()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: self._serving() > started, f"node {self.name}")

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End the node process."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(DEADLINE_S)

    def kubectl(self, *arguments: str) -> str:
        """Output of kubectl in the test's namespace."""
        return kubectl.run(self.cluster.kubectl, "-n", self.namespace, *arguments)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Create or change objects of the test's namespace."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        kubectl.run(self.cluster.kubectl, "-n", self.namespace, "apply", "-f", "-", stdin=text)

    def pod(self, name: str) -> dict[str, Any]:
        """A pod as JSON, {} when there is none."""
        found = self.pods()
        return next((item for item in found if item["metadata"]["name"] == name), {})

    def pods(self) -> list[dict[str, Any]]:
        """The pods of the test's namespace, as JSON."""
        found = self.core.list_namespaced_pod(self.namespace)
        return [self._api.sanitize_for_serialization(item) for item in found.items]

    def phase(self, name: str) -> str:
        """A pod's phase."""
        return str((self.pod(name).get("status") or {}).get("phase"))

    def container(self, name: str) -> dict[str, Any]:
        """The first container status of a pod, {} when there is none yet."""
        statuses = (self.pod(name).get("status") or {}).get("containerStatuses") or [{}]
        return dict(statuses[0])

    def events(self, reason: str) -> list[str]:
        """Messages of events of one reason in the test's namespace."""
        found = self.core.list_namespaced_event(self.namespace).items
        return [item.message or "" for item in found if item.reason == reason]

    def processes(self, mark: str) -> list[str]:
        """Command lines on this machine that contain a mark, supervisors and ourselves left out."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if mark in line and "kubectl" not in line:
                    found.append(line)
        return found

    def _serving(self) -> int:
        log = self.cluster.paths.logs / f"node-{self.name}.log"
        return log.read_text().count("serves") if log.exists() else 0


def pod(
    bench: NodeBench, name: str, script: str = "", *, spec: dict[str, Any] | None = None, **extra: Any
) -> dict[str, Any]:
    """A pod of one shell container for the bench's node. extra: fields of the container; spec: of the pod."""
    container = {"name": "main", "image": "kvasir-local/process", "command": ["sh", "-c", script], **extra}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": bench.name},
            "terminationGracePeriodSeconds": 5,
            "containers": [container],
            **(spec or {}),
        },
    }
