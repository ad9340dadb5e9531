"""The node: registers, sends heartbeats, starts a worker for each pod bound to it. Wired by `__main__`.

Holds what pods share: addresses and GPUs. Decides nothing about a single pod.
"""

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from kvasir_api import __version__
from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import KubeError
from kvasir_kube.informer import Informer
from kvasir_kube.kinds import POD, Json, Key, key
from kvasir_local.node.api_kinds import LEASE, NODE
from kvasir_local.node.container_starter import ContainerStarter
from kvasir_local.node.event_recorder import EventRecorder
from kvasir_local.node.heartbeat import Heartbeat
from kvasir_local.node.object_cache import ObjectCache
from kvasir_local.node.pod_worker import NodeServices, PodWorker
from kvasir_local.node.provisioner import Provisioner
from kvasir_local.node.rules import addresses, devices, node_object
from kvasir_local.node.rules.node_object import Machine
from kvasir_local.node.settings import NodeSettings
from kvasir_local.node.volumes import PodVolumes

LOG: Final = logging.getLogger(__name__)
MANAGER: Final = "kvasir-node"
RETRY_S: Final = 1.0
GOODBYE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class PodTask:
    """A pod's worker and the task that runs it."""

    worker: PodWorker
    task: asyncio.Task[None]


class NodeAgent:
    """Runs the node until cancelled; then stops every container."""

    def __init__(self, cluster: Cluster, settings: NodeSettings, machine: Machine, *, port: int) -> None:
        self._cluster, self._settings, self._machine, self._port = cluster, settings, machine, port
        self._recorder = EventRecorder(cluster, settings.node_name)
        self._cache = ObjectCache(cluster, self._object_changed)
        self._provisioner = Provisioner(cluster, self._cache, self._recorder, settings.volumes_dir)
        self._pods = Informer(cluster, POD, on_change=self._pod_changed)
        self._pod_tasks: dict[str, PodTask] = {}
        self._last_ip: str | None = None
        self._serving = False
        self._tools = NodeServices(
            cluster=cluster,
            settings=settings,
            starter=ContainerStarter(settings, self._cache, machine.gpus),
            recorder=self._recorder,
            allocatable=node_object.allocatable(machine),
            gpus=self._assign_gpus,
        )

    def worker(self, namespace: str, name: str) -> PodWorker | None:
        """The worker of a pod, for the kubelet API."""
        return next(
            (item.worker for item in self._pod_tasks.values() if key(item.worker.pod) == (namespace, name)), None
        )

    async def run(self) -> None:
        """Register, then run pods."""
        since = time.time()
        await _until_done(lambda: self._report(since))
        heartbeat = Heartbeat(
            self._cluster, self._settings.node_name, manager=MANAGER, report=lambda: self._report(since)
        )
        loops = [informer.run() for informer in (self._pods, *self._cache.informers)]
        tasks = [asyncio.create_task(loop) for loop in (*loops, self._recorder.run(), self._provisioner.run())]
        tasks += [asyncio.create_task(heartbeat.run()), asyncio.create_task(self._serve())]
        try:
            for task in asyncio.as_completed(tasks):
                await task  # none returns; one that raises ends the node
        finally:
            await self._end(tasks)

    async def _serve(self) -> None:
        await self._cache.synced()
        await self._pods.synced.wait()
        mine = {pod["metadata"]["uid"] for pod in self._pods.objects.values() if self._is_mine(pod)}
        for directory in (self._settings.state_dir / "pods").iterdir():
            if directory.name not in mine:
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
        self._serving = True
        # Pods that have an address already come first, so that no other pod gets it.
        for name in sorted(
            self._pods.objects, key=lambda name: not (self._pods.objects[name].get("status") or {}).get("podIP")
        ):
            self._pod_changed(name)
        LOG.info("node %s serves, %d pods", self._settings.node_name, len(self._pod_tasks))
        await asyncio.Event().wait()

    def _is_mine(self, pod: Json) -> bool:
        return bool(pod["spec"].get("nodeName") == self._settings.node_name)

    def _pod_changed(self, name: Key) -> None:
        if not self._serving:
            return
        pod = self._pods.objects.get(name)
        uid = pod["metadata"]["uid"] if pod and self._is_mine(pod) else None
        for task_uid, served in self._pod_tasks.items():
            if key(served.worker.pod) == name and task_uid != uid:
                served.worker.update(None)
        if pod is None or uid is None:
            return
        if uid in self._pod_tasks:
            self._pod_tasks[uid].worker.update(pod)
        else:
            self._admit(uid, pod)

    def _admit(self, uid: str, pod: Json) -> None:
        ip = self._address(pod)
        if ip is None:
            LOG.error("no address is left in %s for pod %s/%s", self._settings.pods, *key(pod))
            return
        volumes = PodVolumes(self._cluster, self._cache, self._settings.pod_dir(uid))
        worker = PodWorker(pod, ip=ip, tools=self._tools, volumes=volumes)
        task = asyncio.create_task(worker.run(), name=f"pod {uid}")
        self._pod_tasks[uid] = PodTask(worker, task)
        task.add_done_callback(lambda done: self._forget_task(uid, done))

    def _forget_task(self, uid: str, task: asyncio.Task[None]) -> None:
        del self._pod_tasks[uid]
        if not task.cancelled() and task.exception():
            LOG.error("the worker of pod %s failed", uid, exc_info=task.exception())

    def _address(self, pod: Json) -> str | None:
        if pod["spec"].get("hostNetwork"):
            return self._settings.host_ip
        taken = frozenset(item.worker.record.ip for item in self._pod_tasks.values())
        earlier = (pod.get("status") or {}).get("podIP")
        if earlier and earlier not in taken and earlier in map(str, self._settings.pods.hosts()):
            return str(earlier)
        self._last_ip = addresses.choose(self._settings.pods, taken, self._last_ip)
        return self._last_ip

    def _assign_gpus(self, pod: Json) -> dict[str, tuple[int, ...]] | None:
        held = [item.worker for item in self._pod_tasks.values() if not item.worker.record.settled]
        taken = frozenset(number for worker in held for numbers in worker.gpus.values() for number in numbers)
        return devices.assign(pod, taken, self._machine.gpus)

    def _object_changed(self, namespace: str) -> None:
        self._provisioner.wake()
        for served in self._pod_tasks.values():
            if namespace in ("", served.worker.pod["metadata"]["namespace"]):
                served.worker.request_sync(stale_files=True)

    async def _report(self, since: float) -> None:
        """Apply the Node, its status and its Lease; then the scheduler binds pods to it."""
        name = self._settings.node_name
        await self._cluster.apply(NODE, node_object.node(name, self._machine), manager=MANAGER)
        await self._report_status(("KubeletReady", "the process node is ready"), since)
        await self._cluster.apply(LEASE, node_object.lease(name, now=time.time()), manager=MANAGER)

    async def _report_status(self, ready: tuple[str, str], since: float) -> None:
        status = node_object.node_status(
            self._settings.node_name,
            self._machine,
            host_ip=self._settings.host_ip,
            version=__version__,
            port=self._port,
            ready=ready,
            now=time.time(),
            since=since,
        )
        await self._cluster.apply(NODE, status, manager=MANAGER, subresource="status")

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        workers = [item.task for item in self._pod_tasks.values()]
        for task in (*workers, *tasks):
            task.cancel()
        await asyncio.gather(*workers, *tasks, return_exceptions=True)
        with contextlib.suppress(KubeError, TimeoutError):
            async with asyncio.timeout(GOODBYE_S):
                await self._report_status(
                    ("NodeStopped", "the process node was stopped, its pods with it"), time.time()
                )


async def _until_done(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            return await work()
        except KubeError as error:
            LOG.warning("registration: %s; again in %g s", error, RETRY_S)
            await asyncio.sleep(RETRY_S)
