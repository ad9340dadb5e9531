"""A node whose pods are small servers in the test's own process: what a runtime pod says is set by the test.

It registers a Node, lets the real scheduler bind pods to it, gives each its own loopback address with an ops port, and
writes the pod's status as a kubelet would. No process is started, so a service of many pods costs nothing.
"""

import asyncio
import base64
import contextlib
import itertools
import random
import socket
import ssl
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from fakes import tls_files
from fakes.stub_runtime import StubRuntime
from kvasir_api import names
from kvasir_kube.client import Client
from kvasir_kube.errors import KubeError, NotFoundError
from kvasir_kube.informer import Informer
from kvasir_kube.kinds import POD, SECRET, Json, Key, Kind, key, labels, uid

NODE: Final = Kind(kind="Node", plural="nodes", namespaced=False)
CAPACITY: Final = {"cpu": "64", "memory": "256Gi", "pods": "200", "nvidia.com/gpu": "4"}
HEARTBEAT_S: Final = 10.0
AGAIN_S: Final = 0.5
HOSTNAME: Final = "kubernetes.io/hostname"


class StubPod(StubRuntime):
    """One pod with an ops port alone. refused: its last line. broken: the last line of one whose device failed."""

    def __init__(self, pod: Json, ip: str) -> None:
        super().__init__(pod["metadata"]["name"])
        self.uid, self.ip = uid(pod), ip
        container = pod["spec"]["containers"][0]
        self.args: list[str] = container.get("args") or []
        variables = {variable["name"]: variable.get("value", "") for variable in container.get("env") or ()}
        self.model_uri = variables.get(names.ENV_MODEL_URI, "")
        self.revision = (pod["metadata"].get("labels") or {}).get(names.LABEL_REVISION, "")
        self.refused = self.broken = ""
        self.terminating = False


class FakeKubelet:
    """Run it as a context; `pods` are those that live, by name."""

    def __init__(self, client: Client, *, node: str, refuse: str = "broken") -> None:
        self.pods: dict[str, StubPod] = {}
        self.hold = False  # while set, new pods stay not ready
        self.first_words: dict[str, Any] = {}  # more of what /state of a new pod says
        self.facts = ""  # last words of pods that look at a model; without any they fail
        self.refusal: Callable[[StubPod], str] = lambda pod: ""  # the last line of a new pod, empty when it starts
        self.unknown_image = ""  # no registry has it
        self.looked: list[Json] = []  # those pods, as they were started
        self.fetched: list[Json] = []  # pods that fetch a model, likewise
        self.cut_off: list[str] = []  # pods that were ended with requests and without having been asked to drain
        self._client, self._node, self._refuse = client, node, refuse
        self._subnet, self._claim = _claimed_subnet()
        self._numbers = itertools.cycle(range(1, 255))
        self._dirty: asyncio.Queue[Key] = asyncio.Queue()
        self._mirror = Informer(client, POD, on_change=self._dirty.put_nowait)
        self._tasks: list[asyncio.Task[None]] = []
        self._ending: set[StubPod] = set()

    async def __aenter__(self) -> Self:
        await self._register()
        self._tasks = [asyncio.create_task(c) for c in (self._mirror.run(), self._work(), self._beat())]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        # Also those that a task was ending as it was cancelled: their sockets would stay open.
        await asyncio.gather(*(stub.stop() for stub in (*self.pods.values(), *self._ending)))
        self._claim.close()

    def of(self, revision: str = "") -> list[StubPod]:
        """Pods that do not leave, oldest first; of one revision, if named."""
        return [p for p in self.pods.values() if not p.terminating and revision in ("", p.revision)]

    async def kill(self, name: str) -> None:
        """The pod dies with its node's knowledge: it is deleted at once."""
        pod = next(obj for k, obj in self._mirror.objects.items() if k[1] == name)
        await self._client.delete(POD, *key(pod), grace_s=0)

    async def finish(self, name: str) -> None:
        """A pod that was told to end has ended its requests, and so ends."""
        self.pods[name].set_state(running=0)
        self._dirty.put_nowait(next(k for k in self._mirror.objects if k[1] == name))

    async def lose(self) -> None:
        """The node falls silent, and the controllers have noticed: its pods are marked, and nobody ends them any
        more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(stub.stop() for stub in self.pods.values()))
        condition = {"type": "Ready", "status": "False", "reason": "NodeLost", "lastTransitionTime": now_text()}
        for name in self._mirror.objects:
            if name[1] in self.pods:
                metadata = {"namespace": name[0], "name": name[1]}
                status = {"conditions": [condition, {**condition, "type": "ContainersReady"}]}
                await self._client.apply(
                    POD, {"metadata": metadata, "status": status}, manager="node-lifecycle", subresource="status"
                )
        self.pods.clear()

    async def _register(self) -> None:
        metadata = {"name": self._node, "labels": {HOSTNAME: self._node}}
        await self._client.apply(NODE, {"metadata": metadata}, manager="fake-kubelet")
        await self._say_ready()

    async def _say_ready(self) -> None:
        now = now_text()
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "Fake",
            "message": "",
            "lastHeartbeatTime": now,
            "lastTransitionTime": now,
        }
        status = {"capacity": CAPACITY, "allocatable": CAPACITY, "conditions": [condition]}
        await self._client.apply(
            NODE, {"metadata": {"name": self._node}, "status": status}, manager="fake-kubelet", subresource="status"
        )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            with contextlib.suppress(KubeError):
                await self._say_ready()

    async def _work(self) -> None:
        while True:
            name = await self._dirty.get()
            pod = self._mirror.objects.get(name)
            try:
                if pod is None or (pod.get("spec") or {}).get("nodeName") != self._node:
                    if pod is None and name[1] in self.pods:
                        await self._stop(name[1])
                elif labels(pod).get(names.LABEL_COMPONENT) == names.COMPONENT_INSPECT:
                    await self._look(pod)
                elif labels(pod).get(names.LABEL_COMPONENT) == names.COMPONENT_FETCH:
                    await self._end(pod, self.fetched, 0, "Completed", "")
                elif pod["metadata"].get("deletionTimestamp"):
                    await self._terminate(pod)
                elif name[1] in self.pods:
                    await self._report(pod, self.pods[name[1]])
                elif pod["spec"]["containers"][0]["image"] == self.unknown_image:
                    await self._fail_pull(pod)
                else:
                    await self._start(pod)
            except NotFoundError:
                continue
            except KubeError:
                # An API server that is too busy to answer in time; a node does not die of that.
                asyncio.get_running_loop().call_later(AGAIN_S, self._dirty.put_nowait, name)

    async def _look(self, pod: Json) -> None:
        """A pod that looks at a model ends at once."""
        said = (0, "Completed", self.facts) if self.facts else (2, "Error", "Error: no config.json")
        await self._end(pod, self.looked, *said)

    async def _end(self, pod: Json, seen: list[Json], code: int, reason: str, words: str) -> None:
        """A pod that serves nothing ends. seen: those of its sort, as they were started."""
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return
        if all(pod["metadata"]["uid"] != before["metadata"]["uid"] for before in seen):  # an older event of it
            seen.append(pod)
        ended = {"exitCode": code, "reason": reason, "message": words}
        name = labels(pod)[names.LABEL_COMPONENT]
        container = {"name": name, "image": "", "imageID": "", "ready": False, "restartCount": 0}
        statuses = [{**container, "state": {"terminated": ended}}]
        status: Json = {"phase": "Failed" if code else "Succeeded", "containerStatuses": statuses}
        await self._client.apply(
            POD, {"metadata": pod_reference(pod), "status": status}, manager="fake-kubelet", subresource="status"
        )

    async def _fail_pull(self, pod: Json) -> None:
        """A pod whose image is nowhere waits."""
        if (pod.get("status") or {}).get("containerStatuses"):
            return
        image = pod["spec"]["containers"][0]["image"]
        waiting = {"reason": "ErrImagePull", "message": f"no registry has {image}"}
        container = {"name": names.CONTAINER_RUNTIME, "image": image, "imageID": "", "ready": False, "restartCount": 0}
        status = {"phase": "Pending", "containerStatuses": [{**container, "state": {"waiting": waiting}}]}
        await self._client.apply(
            POD, {"metadata": pod_reference(pod), "status": status}, manager="fake-kubelet", subresource="status"
        )

    async def _start(self, pod: Json) -> None:
        stub = StubPod(pod, self._address())
        stub.set_state(kv_pinned=0, device="cpu", kernels="stub", phase="loading" if self.hold else "ready")
        stub.set_state(**self.first_words)
        if self._refuse in stub.args[0]:
            stub.refused = f"{names.REFUSAL_PREFIX}{stub.model_uri} has no config.json"
        stub.refused = stub.refused or self.refusal(stub)
        self.pods[stub.name] = stub
        stub.on_drain = lambda: self._dirty.put_nowait(key(pod))
        stub.tls = await self._certificate(pod)
        await stub.start_ops(stub.ip, names.PORT_OPS)
        await self._report(pod, stub)

    async def _certificate(self, pod: Json) -> ssl.SSLContext | None:
        """Of a pod that mounts one, which has to be there by then."""
        mounted = [(volume.get("secret") or {}).get("secretName") for volume in pod["spec"].get("volumes") or ()]
        if names.POD_TLS_SECRET not in mounted:
            return None
        found = (await self._client.get(SECRET, key(pod)[0], names.POD_TLS_SECRET))["data"]
        with tempfile.TemporaryDirectory() as directory:
            for entry in (names.TLS_CERTIFICATE, names.TLS_KEY):
                (Path(directory) / entry).write_bytes(base64.b64decode(found[entry]))
            return tls_files.server_side(Path(directory))

    def _address(self) -> str:
        """The next one of the subnet that no pod has; a long run takes each many times."""
        taken = {pod.ip for pod in self.pods.values()}
        asked = (f"{self._subnet}.{next(self._numbers)}" for _ in range(254))
        return next(address for address in asked if address not in taken)

    async def ready(self, name: str) -> None:
        """A pod that was held, or whose device had failed, becomes ready."""
        self.pods[name].set_state(phase="ready")
        self.pods[name].broken = ""
        pod = next(obj for k, obj in self._mirror.objects.items() if k[1] == name)
        await self._report(pod, self.pods[name])

    async def fail(self, name: str, words: str) -> None:
        """The device of a pod fails: its container ends with these last words, and stays down."""
        self.pods[name].broken = f"{names.REFUSAL_PREFIX}{words}"
        pod = next(obj for k, obj in self._mirror.objects.items() if k[1] == name)
        await self._report(pod, self.pods[name])

    async def _report(self, pod: Json, stub: StubPod) -> None:
        """Write the pod's status when it differs from what it should be."""
        ready = stub.state.phase == "ready" and not (stub.refused or stub.broken)
        have = pod.get("status") or {}
        now_ready = any(c["type"] == "Ready" and c["status"] == "True" for c in have.get("conditions") or ())
        if have.get("podIP") and now_ready == ready and not stub.refused:
            return
        if stub.refused and have.get("podIP"):
            return
        now = now_text()
        conditions = [
            {"type": kind, "status": "True" if ready else "False", "lastTransitionTime": now}
            for kind in ("Ready", "ContainersReady")
        ]
        running: Json = {"running": {"startedAt": now}}
        code, words = (names.EXIT_DEVICE, stub.broken) if stub.broken else (names.EXIT_REFUSED, stub.refused)
        ended: Json = {"terminated": {"exitCode": code, "reason": "Error", "message": words}}
        container = {
            "name": names.CONTAINER_RUNTIME,
            "image": pod["spec"]["containers"][0]["image"],
            "imageID": "",
            "ready": ready,
            "restartCount": 1 if words else 0,
            "state": ended if words else running,
        }
        status = {"phase": "Running", "podIP": stub.ip, "podIPs": [{"ip": stub.ip}], "startTime": now}
        status |= {"conditions": conditions, "containerStatuses": [container]}
        await self._client.apply(
            POD,
            {"metadata": {"namespace": pod["metadata"]["namespace"], "name": stub.name}, "status": status},
            manager="fake-kubelet",
            subresource="status",
        )

    async def _terminate(self, pod: Json) -> None:
        name = pod["metadata"]["name"]
        stub = self.pods.get(name)
        if stub is not None:
            if stub.state.running and not stub.drains and not stub.terminating:
                self.cut_off.append(name)
            stub.terminating = True
            if stub.state.running and pod["metadata"].get("deletionGracePeriodSeconds", 0) > 10:
                return  # it finishes its requests; the test lets them end
        await self._stop(name)
        await self._client.delete(POD, *key(pod), uid=uid(pod), grace_s=0)

    async def _stop(self, name: str) -> None:
        stub = self.pods.pop(name, None)
        if stub is not None:
            self._ending.add(stub)
            await stub.stop()
            self._ending.discard(stub)


def pod_reference(pod: Json) -> Json:
    return {name: pod["metadata"][name] for name in ("namespace", "name")}


def now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _claimed_subnet() -> tuple[str, socket.socket]:
    """Three octets of pods' addresses, and what keeps them ours: a listener where another one would look for its own.

    They lie below 127.16, where clusters of process nodes have their pods."""
    for _ in range(100):
        subnet = f"127.{random.randrange(2, 16)}.{random.randrange(256)}"
        with contextlib.suppress(OSError):
            return subnet, socket.create_server((f"{subnet}.255", names.PORT_OPS))
    raise OSError("of a hundred subnets below 127.16 each had a listener")
