"""One pod from admission to removal: looks, decides (`rules/lifecycle.py`), carries out, writes status when it changed.

Level-triggered: `update`, a changed source, the end of a container and a probe only ring the bell. Made by `agent`.
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
from kvasir_kube.kinds import POD, resource_version, strip_managed_fields
from kvasir_local.node import logs
from kvasir_local.node.container import StartFailedError
from kvasir_local.node.recorder import Recorder
from kvasir_local.node.rules import fields, lifecycle, probe, record, status, transitions
from kvasir_local.node.rules.downward import Place
from kvasir_local.node.rules.fieldtable import POD as POD_FIELDS
from kvasir_local.node.rules.kinds import ConfigError, Json, init_containers, named
from kvasir_local.node.rules.record import Failure, PodRecord
from kvasir_local.node.rules.rootfs import Mount
from kvasir_local.node.running import RunningContainer
from kvasir_local.node.settings import Settings
from kvasir_local.node.starter import Run, Starter, UnknownImageError
from kvasir_local.node.volumes import PodVolumes

LOG: Final = logging.getLogger(__name__)
MANAGER: Final = "kvasir-node"
RETRY_S: Final = 1.0
MESSAGE_LIMIT_BYTES: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What every worker of a node shares. gpus: container → numbers for a pod, None when too few are free."""

    cluster: Cluster
    settings: Settings
    starter: Starter
    recorder: Recorder
    allocatable: Mapping[str, str]
    gpus: Callable[[Json], dict[str, tuple[int, ...]] | None]


class PodWorker:
    """Owns one pod, by uid. `pod` is the latest seen; `record` what is known of its containers."""

    def __init__(self, pod: Json, *, ip: str, tools: Tools, volumes: PodVolumes) -> None:
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self.record: PodRecord = record.fresh(pod, ip=ip, now=time.time())
        self.gpus: dict[str, tuple[int, ...]] = {}
        self._tools, self._volumes = tools, volumes
        self._place = Place(
            pod_ip=ip,
            host_ip=tools.settings.host_ip,
            node_name=tools.settings.node_name,
            allocatable=tools.allocatable,
        )
        self._bell = asyncio.Event()
        self._running: dict[str, RunningContainer] = {}
        self._gone = self._removed = self._stale_files = False
        self._files_due: float | None = None

    def update(self, pod: Json | None) -> None:
        """The pod as the API server has it now, or None when it is gone."""
        self._gone = pod is None
        # Our own write may be ahead of the watch: an older pod is not news.
        if pod and resource_version(dict(pod)) >= resource_version(dict(self.pod)):
            changed = pod["metadata"].get("generation") != self.pod["metadata"].get("generation")
            self.pod = pod
            if changed and (refused := _refusal(pod)):  # added while it runs, such as an ephemeral container
                self._tools.recorder.pod(pod, "UnsupportedField", refused, warning=True)
        self.look_again(stale_files=True)

    def look_again(self, *, stale_files: bool = False) -> None:
        """Something may have changed; stale_files: perhaps something that a volume shows."""
        self._stale_files = self._stale_files or stale_files
        self._bell.set()

    def lives(self, container: str) -> bool:
        """Whether a run of the container is in progress. KeyError when the pod has no such container."""
        return isinstance(self.record.containers[container].state, record.Running)

    async def run(self) -> None:
        """Serve the pod until it is removed. When cancelled, its processes are killed and its directory stays."""
        try:
            self._admit()
            while not self._removed:
                self._bell.clear()
                await self._rest(await self._look_safely())
        finally:
            await asyncio.gather(*(item.end() for item in self._running.values()))

    def _admit(self) -> None:
        if self.record.settled:
            return
        # An ephemeral container can only come later, and must not end a pod that ran when the node was started again.
        first = {name: field for name, field in self.pod["spec"].items() if name != "ephemeralContainers"}
        refused = _refusal({**self.pod, "spec": first})
        gpus = self._tools.gpus(self.pod)
        if refused:
            self._fail("UnsupportedField", refused)
        elif gpus is None:
            self._fail("UnexpectedAdmissionError", "fewer GPUs are free on this node than the pod asks for")
        else:
            self.gpus = gpus

    def _fail(self, reason: str, message: str) -> None:
        self.record = replace(self.record, failure=Failure(reason, message))
        self._tools.recorder.pod(self.pod, reason, message, warning=True)

    async def _look_safely(self) -> float | None:
        try:
            return await self._look()
        except KubeError as error:
            LOG.warning("pod %s/%s: %s", *self._name(), error)
        except Exception:
            LOG.exception("pod %s/%s: unexpected error; again in %g s", *self._name(), RETRY_S)
        return time.time() + RETRY_S

    async def _look(self) -> float | None:
        """One look. Returns when to look again (epoch) even if nothing rings."""
        self._collect()
        decision = lifecycle.decide(self.pod, self.record, gone=self._gone, now=time.time())
        self.record = decision.record
        for order in decision.orders:
            match order:
                case lifecycle.Start(name):
                    await self._start(name)
                    self._bell.set()
                case lifecycle.Stop(name=name, deadline=deadline, why=why):
                    if name in self._running:
                        self._running[name].stop(deadline, why)
                case lifecycle.Remove():
                    await self._remove()
                    return None
        await self._refresh_files()
        await self._publish()
        return min((wake for wake in (decision.wake_at, self._files_due) if wake is not None), default=None)

    async def _rest(self, wake_at: float | None) -> None:
        if self._removed:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if wake_at is None else max(wake_at - time.time(), 0.01)):
                await self._bell.wait()

    def _collect(self) -> None:
        """Bring what the processes did into the record."""
        for name, running in list(self._running.items()):
            known = self.record.containers[name]
            if running.exit_code is None:
                known = replace(known, started=running.started, ready=running.ready)
            else:
                del self._running[name]
                policy = self._tools.settings.backoff
                words = self._last_words(name, known.restarts, failed=running.exit_code != 0)
                known = transitions.ended(
                    known, exit_code=running.exit_code, message=words, policy=policy, now=running.finished_at
                )
                self._say_backoff(name, known)
            self.record = self.record.with_container(known)

    async def _start(self, name: str) -> None:
        known, container, now = self.record.containers[name], named(self.pod["spec"], name), time.time()
        run, image = transitions.next_run(known), container["image"]
        say = partial(self._tools.recorder.pod, self.pod, container=name)
        try:
            mounts = await self._volumes.mounts(self.pod, self._place)
        except (ConfigError, OSError) as error:
            say("FailedMount", f"MountVolume.SetUp failed: {error}", container="", warning=True)
            self.record = self.record.with_container(
                transitions.waits(known, "ContainerCreating", str(error), retry_s=RETRY_S, now=now)
            )
            return
        try:
            known = await self._run(name, container, mounts, run)
            say("Started", f"Started container {name}")
        except UnknownImageError as error:
            known = transitions.waits_for_image(known, str(error), now=now)
            say("Failed", f'Failed to pull image "{image}": {error}', warning=True)
        except ConfigError as error:
            known = transitions.waits(known, "CreateContainerConfigError", str(error), retry_s=RETRY_S, now=now)
            say("Failed", f"Error: {error}", warning=True)
        except StartFailedError as error:
            policy = self._tools.settings.backoff
            known = transitions.start_failed(
                known, str(error), run=run, pod_uid=self.uid, image=image, policy=policy, now=now
            )
            say("Failed", f"Error: {error}", warning=True)
            self._say_backoff(name, known)
        self.record = self.record.with_container(known)

    async def _run(self, name: str, container: Json, mounts: Mapping[str, Mount], run: int) -> record.ContainerRecord:
        probes, hook = probe.probes(container), probe.hook(container)
        wish = Run(
            pod=self.pod, container=container, place=self._place, volumes=mounts, gpus=self.gpus.get(name, ()), run=run
        )
        running = RunningContainer(
            name,
            await self._tools.starter.start(wish),
            probes=probes,
            hook=hook,
            pod_ip=self._place.pod_ip,
            grace_s=float(self.pod["spec"].get("terminationGracePeriodSeconds") or 0),
            say=partial(self._tools.recorder.pod, self.pod, container=name),
            changed=self._bell.set,
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
            self._files_due = await self._volumes.refresh(self.pod, self._place)
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
            self._bell.set()

    async def _remove(self) -> None:
        await self._publish()
        if not self._gone:
            namespace, name = self._name()
            with contextlib.suppress(ConflictError):
                await self._tools.cluster.delete(POD, namespace, name, uid=self.uid, grace_s=0)
        await asyncio.to_thread(self._volumes.remove)
        self._tools.recorder.forget(self.uid)
        self._removed = True

    def _say_backoff(self, name: str, known: record.ContainerRecord) -> None:
        end = known.state
        is_init = any(item["name"] == name for item in init_containers(self.pod["spec"]))
        if not isinstance(end, record.Terminated) or known.not_before <= end.finished_at:
            return
        if lifecycle.will_restart(self.pod, end, init=is_init) and "deletionTimestamp" not in self.pod["metadata"]:
            message = f"Back-off restarting failed container {name} in pod {self._name()[1]}"
            self._tools.recorder.pod(self.pod, "BackOff", message, container=name, warning=True)

    def _last_words(self, name: str, run: int, *, failed: bool) -> str:
        """The termination message: the file, else the end of the log if the pod asks for that."""
        settings = self._tools.settings
        with contextlib.suppress(OSError):
            text = settings.message(self.uid, name, run).read_bytes()[:MESSAGE_LIMIT_BYTES].decode(errors="replace")
            if text:
                return text
        by_log = named(self.pod["spec"], name).get("terminationMessagePolicy") == "FallbackToLogsOnError"
        return logs.last_words(settings.log(self.uid, name, run)) if failed and by_log else ""

    def _name(self) -> tuple[str, str]:
        return self.pod["metadata"]["namespace"], self.pod["metadata"]["name"]


def _refusal(pod: Json) -> str | None:
    return fields.refusal(fields.findings(pod["spec"], POD_FIELDS))
