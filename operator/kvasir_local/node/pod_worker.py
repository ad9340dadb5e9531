"""One pod from admission to removal: computes actions (`rules/pod_actions.py`), carries them out, writes status.

Level-triggered: `update`, a changed object, the end of a container and a probe only request a sync, as in the kubelet.
Created by `agent`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from kvasir_kube.cluster import Cluster
from kvasir_kube.errors import ConflictError, KubeError, NotFoundError
from kvasir_kube.kinds import POD, Json, resource_version, strip_managed_fields
from kvasir_local.node import container_logs
from kvasir_local.node.container import StartFailedError
from kvasir_local.node.container_starter import ContainerRun, ContainerStarter, UnknownImageError
from kvasir_local.node.event_recorder import EventRecorder
from kvasir_local.node.rules import field_support, pod_actions, pod_record, probe, status, transitions
from kvasir_local.node.rules.downward_api import PodPlacement
from kvasir_local.node.rules.kinds import ConfigError, init_containers, named
from kvasir_local.node.rules.pod_record import Failure, PodRecord
from kvasir_local.node.rules.rootfs import Mount
from kvasir_local.node.rules.supported_fields import POD as POD_FIELDS
from kvasir_local.node.running_container import RunningContainer
from kvasir_local.node.settings import NodeSettings
from kvasir_local.node.volumes import PodVolumes

LOG: Final = logging.getLogger(__name__)
MANAGER: Final = "kvasir-node"
RETRY_S: Final = 1.0
MESSAGE_LIMIT_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeServices:
    """What all workers of a node share. gpus: container → GPU numbers for a pod, None when too few are free."""

    cluster: Cluster
    settings: NodeSettings
    starter: ContainerStarter
    recorder: EventRecorder
    allocatable: Mapping[str, str]
    gpus: Callable[[Json], dict[str, tuple[int, ...]] | None]


class PodWorker:
    """Owns one pod, by uid. `pod` is the latest version; `record` holds the state of its containers."""

    def __init__(self, pod: Json, *, ip: str, tools: NodeServices, volumes: PodVolumes) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.record: PodRecord = pod_record.fresh(pod, ip=ip, now=time.time())
        self.gpus: dict[str, tuple[int, ...]] = {}
        self._tools, self._volumes = tools, volumes
        self._placement = PodPlacement(
            pod_ip=ip,
            host_ip=tools.settings.host_ip,
            node_name=tools.settings.node_name,
            allocatable=tools.allocatable,
        )
        self._sync_requested = asyncio.Event()
        self._running: dict[str, RunningContainer] = {}
        self._gone = self._removed = self._stale_files = False
        self._files_due: float | None = None

    def update(self, pod: Json | None) -> None:
        """The pod as the API server has it now, or None when it is gone."""
        self._gone = pod is None
        # Our own write may be ahead of the watch: an older version is ignored.
        if pod and resource_version(pod) >= resource_version(self.pod):
            changed = pod["metadata"].get("generation") != self.pod["metadata"].get("generation")
            self.pod = pod
            if changed and (refused := _refusal(pod)):  # added while it runs, such as an ephemeral container
                self._tools.recorder.pod(pod, "UnsupportedField", refused, warning=True)
        self.request_sync(stale_files=True)

    def request_sync(self, *, stale_files: bool = False) -> None:
        """Sync soon; stale_files: the files of volumes may have changed too."""
        self._stale_files = self._stale_files or stale_files
        self._sync_requested.set()

    def lives(self, container: str) -> bool:
        """Whether a run of the container is in progress. KeyError when the pod has no such container."""
        return isinstance(self.record.containers[container].state, pod_record.Running)

    async def run(self) -> None:
        """Run the pod until it is removed. When cancelled, its processes are killed and its directory stays."""
        try:
            self._admit()
            while not self._removed:
                self._sync_requested.clear()
                await self._await_next_sync(await self._sync_safely())
        finally:
            await asyncio.gather(*(item.end() for item in self._running.values()))

    def _admit(self) -> None:
        if self.record.settled:
            return
        # An ephemeral container is only added later, and must not fail a pod that runs when the node restarts.
        first = {name: field for name, field in self.pod["spec"].items() if name != "ephemeralContainers"}
        refused = _refusal({**self.pod, "spec": first})
        gpus = self._tools.gpus(self.pod)
        if refused:
            self._fail("UnsupportedField", refused)
        elif gpus is None:
            self._fail("UnexpectedAdmissionError", "fewer GPUs are free on this node than the pod requests")
        else:
            self.gpus = gpus

    def _fail(self, reason: str, message: str) -> None:
        self.record = replace(self.record, failure=Failure(reason, message))
        self._tools.recorder.pod(self.pod, reason, message, warning=True)

    async def _sync_safely(self) -> float | None:
        try:
            return await self._sync()
        except KubeError as error:
            LOG.warning("pod %s/%s: %s", *self._name(), error)
        except Exception:
            LOG.exception("pod %s/%s: unexpected error; again in %g s", *self._name(), RETRY_S)
        return time.time() + RETRY_S

    async def _sync(self) -> float | None:
        """One sync. Returns the time (epoch) of the next one without a request."""
        self._collect()
        actions = pod_actions.compute_pod_actions(self.pod, self.record, gone=self._gone, now=time.time())
        self.record = actions.record
        for action in actions.actions:
            match action:
                case pod_actions.StartContainer(name):
                    await self._start(name)
                    self._sync_requested.set()
                case pod_actions.StopContainer(name=name, deadline=deadline, why=why):
                    if name in self._running:
                        self._running[name].stop(deadline, why)
                case pod_actions.RemovePod():
                    await self._remove()
                    return None
        await self._refresh_files()
        await self._publish()
        return min((wake for wake in (actions.wake_at, self._files_due) if wake is not None), default=None)

    async def _await_next_sync(self, wake_at: float | None) -> None:
        if self._removed:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if wake_at is None else max(wake_at - time.time(), 0.01)):
                await self._sync_requested.wait()

    def _collect(self) -> None:
        """Bring what the processes did into the record."""
        for name, running in list(self._running.items()):
            known = self.record.containers[name]
            if running.exit_code is None:
                known = replace(known, started=running.started, ready=running.ready)
            else:
                del self._running[name]
                policy = self._tools.settings.backoff
                words = self._termination_message(name, known.restarts, failed=running.exit_code != 0)
                known = transitions.ended(
                    known, exit_code=running.exit_code, message=words, policy=policy, now=running.finished_at
                )
                self._record_backoff(name, known)
            self.record = self.record.with_container(known)

    async def _start(self, name: str) -> None:
        known, container, now = self.record.containers[name], named(self.pod["spec"], name), time.time()
        run, image = transitions.next_run(known), container["image"]
        record_event = partial(self._tools.recorder.pod, self.pod, container=name)
        try:
            mounts = await self._volumes.mounts(self.pod, self._placement)
        except (ConfigError, OSError) as error:
            record_event("FailedMount", f"MountVolume.SetUp failed: {error}", container="", warning=True)
            self.record = self.record.with_container(
                transitions.waits(known, "ContainerCreating", str(error), retry_s=RETRY_S, now=now)
            )
            return
        try:
            known = await self._run(name, container, mounts, run)
            record_event("Started", f"Started container {name}")
        except UnknownImageError as error:
            known = transitions.waits_for_image(known, str(error), now=now)
            record_event("Failed", f'Failed to pull image "{image}": {error}', warning=True)
        except ConfigError as error:
            known = transitions.waits(known, "CreateContainerConfigError", str(error), retry_s=RETRY_S, now=now)
            record_event("Failed", f"Error: {error}", warning=True)
        except StartFailedError as error:
            policy = self._tools.settings.backoff
            known = transitions.start_failed(
                known, str(error), run=run, pod_uid=self.uid, image=image, policy=policy, now=now
            )
            record_event("Failed", f"Error: {error}", warning=True)
            self._record_backoff(name, known)
        self.record = self.record.with_container(known)

    async def _run(
        self, name: str, container: Json, mounts: Mapping[str, Mount], run: int
    ) -> pod_record.ContainerRecord:
        probes, hook = probe.probes(container), probe.hook(container)
        this_run = ContainerRun(
            pod=self.pod,
            container=container,
            placement=self._placement,
            volumes=mounts,
            gpus=self.gpus.get(name, ()),
            run=run,
        )
        running = RunningContainer(
            name,
            await self._tools.starter.start(this_run),
            probes=probes,
            hook=hook,
            pod_ip=self._placement.pod_ip,
            grace_s=float(self.pod["spec"].get("terminationGracePeriodSeconds") or 0),
            record_event=partial(self._tools.recorder.pod, self.pod, container=name),
            changed=self._sync_requested.set,
        )
        self._running[name] = running
        known = transitions.started(
            self.record.containers[name], run=run, pod_uid=self.uid, image=container["image"], now=time.time()
        )
        return replace(known, started=running.started, ready=running.ready)

    async def _refresh_files(self) -> None:
        due = self._files_due is not None and time.time() >= self._files_due
        if not self._running or not (self._stale_files or due):
            return
        self._stale_files = False
        try:
            self._files_due = await self._volumes.refresh(self.pod, self._placement)
        except ConfigError as error:
            self._tools.recorder.pod(self.pod, "FailedMount", f"MountVolume.SetUp failed: {error}", warning=True)

    async def _publish(self) -> None:
        wanted = status.pod_status(self.pod, self.record, host_ip=self._tools.settings.host_ip, now=time.time())
        if self._gone or not status.differs(self.pod, wanted):
            return
        namespace, name = self._name()
        body = {"metadata": {"namespace": namespace, "name": name, "uid": self.uid}, "status": wanted}
        try:
            self.pod = strip_managed_fields(
                await self._tools.cluster.apply(POD, body, manager=MANAGER, subresource="status")
            )
        except (NotFoundError, ConflictError):
            self._gone = True
            self._sync_requested.set()

    async def _remove(self) -> None:
        await self._publish()
        if not self._gone:
            namespace, name = self._name()
            with contextlib.suppress(ConflictError):
                await self._tools.cluster.delete(POD, namespace, name, uid=self.uid, grace_s=0)
        await asyncio.to_thread(self._volumes.remove)
        self._tools.recorder.forget(self.uid)
        self._removed = True

    def _record_backoff(self, name: str, known: pod_record.ContainerRecord) -> None:
        end = known.state
        is_init = any(item["name"] == name for item in init_containers(self.pod["spec"]))
        if not isinstance(end, pod_record.Terminated) or known.not_before <= end.finished_at:
            return
        if pod_actions.will_restart(self.pod, end, init=is_init) and "deletionTimestamp" not in self.pod["metadata"]:
            message = f"Back-off restarting failed container {name} in pod {self._name()[1]}"
            self._tools.recorder.pod(self.pod, "BackOff", message, container=name, warning=True)

    def _termination_message(self, name: str, run: int, *, failed: bool) -> str:
        """The termination message: the file, else the end of the log with FallbackToLogsOnError."""
        settings = self._tools.settings
        with contextlib.suppress(OSError):
            text = settings.message(self.uid, name, run).read_bytes()[:MESSAGE_LIMIT_BYTES].decode(errors="replace")
            if text:
                return text
        by_log = named(self.pod["spec"], name).get("terminationMessagePolicy") == "FallbackToLogsOnError"
        return container_logs.end_of_log(settings.log(self.uid, name, run)) if failed and by_log else ""

    def _name(self) -> tuple[str, str]:
        return self.pod["metadata"]["namespace"], self.pod["metadata"]["name"]


def _refusal(pod: Json) -> str | None:
    return field_support.refusal(field_support.findings(pod["spec"], POD_FIELDS))
