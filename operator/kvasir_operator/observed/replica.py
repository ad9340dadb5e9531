"""A pod of a service as decisions see it: its phase, since when, and its last reading.

Called by the loop when it observes, never by a decision; knows the shape of a pod, no client and no clock.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

from msgspec import Struct, structs

from kvasir_api import names
from kvasir_api.state import RuntimeState
from kvasir_kube import pod_tls
from kvasir_kube.kinds import Json, has_ended
from kvasir_operator.observed.kubelet_end import kubelet_end

Phase = Literal["unschedulable", "starting", "loading", "ready", "draining", "failed"]

IMAGE_WAITS: Final = frozenset(
    {
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "ImageInspectError",
        "InvalidImageName",
        "RegistryUnavailable",
        "SignatureValidationFailed",
    }
)
"""Reasons for which a container waits that has no image: all that the kubelet knows."""
FAILED_WAITS: Final = IMAGE_WAITS | frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
"""Reasons for which a container waits that do not pass by waiting alone."""
_STARTS: Final = ("starting", "loading", "warming")
"""What a runtime says while its model may still come."""
OUT_OF_MEMORY: Final = "OOMKilled"
MOST_IMAGE_WORDS: Final = 600
"""A registry's words name the image several times before they come to the cause."""
LATE_S: Final = 60.0
"""Processes, tokenizer and probes take no longer than this beside what the runtime measures of its start."""
RESTARTS_OF_A_FAILURE: Final = 2
"""A container that died this often and is not ready is failing; one death is an accident."""


class Replica(Struct, frozen=True, kw_only=True):
    """One pod.

    created, scheduled_at, mounted_at, started_at, ready_at, drain_since: epoch seconds; None where it did not happen.
    grace_ends_at: when the grace of a terminating pod is over, epoch seconds.
    draining_s: for how long it has drained, on a clock that never jumps.
    mounted_at: when its volumes were there, which not every kubelet reports; unmounted: the kubelet reports that they
    are not. assigned: a node was found. ended_at: when the kubelet ended it for good, as where its node had no room
    left; the workload has another in its place then. refusal: the line with which the runtime refused model or options.
    image_failure: which image cannot be pulled, and why; empty where that is not what it waits for. last_words: why it
    failed, for people. drained: the operator
    has marked it as the first to go. reading: the runtime's last document, None when it is silent. node: where it runs;
    node_leaves, spot: that node will not be there for long, or can vanish at short notice, as far as that was asked.
    domains: labels of that node that say what it is near to, where the other pods of the replica are to be made.
    out_of_memory: its container ended last because it took more memory than its limit. device_fault: how its container
    said, when it ended last, that its device failed. watchdog: how it said then that its engine stood still. ends: how
    often it has ended. unhealthy: devices of it that the kubelet calls so.
    quarantined_at: when it was quarantined last. prefill: it is to compute prompts for the others. ops_keys: the
    operator's public keys that it was given; None where it reads none. server_name: that its certificate must have,
    empty where it speaks no TLS.
    nodes: the other pods of a replica of several, for which this one, node 0, stands. broken: why they compute together
    no longer, empty where they do or may.
    """

    name: str
    uid: str = ""
    revision: str = ""
    ip: str = ""
    ops_port: int = names.PORT_OPS
    phase: Phase = "starting"
    created: float = 0.0
    scheduled_at: float | None = None
    mounted_at: float | None = None
    unmounted: bool = False
    started_at: float | None = None
    ready_at: float | None = None
    drain_since: float | None = None
    draining_s: float = 0.0
    drained: bool = False
    terminating: bool = False
    ended_at: float | None = None
    grace_ends_at: float | None = None
    assigned: bool = True
    pending: bool = False
    restarts: int = 0
    out_of_memory: bool = False
    refusal: str = ""
    image_failure: str = ""
    device_fault: str = ""
    watchdog: str = ""
    ends: int = 0
    unhealthy: tuple[str, ...] = ()
    quarantined_at: float | None = None
    prefill: bool = False
    ops_keys: str | None = None
    server_name: str = ""
    last_words: str = ""
    reading: RuntimeState | None = None
    node: str = ""
    node_leaves: bool = False
    spot: bool = False
    domains: tuple[tuple[str, str], ...] = ()
    nodes: tuple["Replica", ...] = ()
    broken: str = ""

    @property
    def idle(self) -> bool:
        """Whether its reading has no request. A silent pod is not known to be idle."""
        return self.reading is not None and self.reading.running == 0 and self.reading.waiting == 0

    @property
    def downloads(self) -> bool:
        """Whether it fetches its model, or waits for what another pod fetches; it may load meanwhile."""
        said = self.reading
        return said is not None and said.phase in _STARTS and 0 <= said.downloaded_bytes < said.download_bytes

    @property
    def downloaded_bytes(self) -> int:
        """What of its model it has fetched; 0 where it fetches none."""
        return self.reading.downloaded_bytes if self.reading is not None else 0

    @property
    def first_ready_at(self) -> float | None:
        """When it became ready for the first time, epoch seconds; None where that is not known.

        A readiness probe that failed meanwhile moves ready_at to the end of the failure, and a container that was
        started again was ready before: then what the runtime measured of its start counts.
        """
        if self.ready_at is None or self.restarts:
            return None
        measured_s = self.reading.start.total_s if self.reading is not None else 0.0
        began = self.started_at or self.scheduled_at or self.created
        if not measured_s or self.ready_at <= began + measured_s + LATE_S:
            return self.ready_at
        return began + measured_s

    @property
    def live(self) -> bool:
        """Whether it counts as one of its workload's pods: one that terminates or has ended was replaced already."""
        return not self.terminating and self.ended_at is None

    @property
    def unhealthy_words(self) -> str:
        """The kubelet's verdict on its devices, empty when they are healthy."""
        return f"the kubelet reports {', '.join(self.unhealthy)} as unhealthy" if self.unhealthy else ""

    @property
    def ops_url(self) -> str:
        """Base URL of its ops port, empty while it has no address."""
        return pod_tls.base_url(self.ip, self.ops_port, self.server_name) if self.ip else ""


DRAINED_COST: Final = -2_000_000_000
"""pod-deletion-cost of a pod that may go now."""
DRAINING_COST: Final = -1_000_000
"""pod-deletion-cost of a pod that still finishes requests: after those that may go, before all others."""


def replica(pod: Json, reading: RuntimeState | None) -> Replica:
    """A pod object and its reading as a Replica."""
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    notes = metadata.get("annotations") or {}
    runtime = _runtime(status.get("containerStatuses") or ())
    ready_at = _true_since(status, "Ready")
    refusal = refusal_line(_terminated(runtime)) if ready_at is None else ""
    return Replica(
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        revision=str((metadata.get("labels") or {}).get(names.LABEL_REVISION, "")),
        ip=str(status.get("podIP") or ""),
        ops_port=_ops_port(pod),
        phase=_phase(pod, runtime, refusal, reading),
        created=epoch(metadata.get("creationTimestamp")) or 0.0,
        scheduled_at=_true_since(status, "PodScheduled"),
        mounted_at=_true_since(status, "PodReadyToStartContainers"),
        unmounted=_condition(status, "PodReadyToStartContainers").get("status") == "False",
        started_at=epoch(((runtime.get("state") or {}).get("running") or {}).get("startedAt")),
        ready_at=ready_at,
        drain_since=epoch(notes.get(names.ANNOTATION_DRAIN)),
        drained=notes.get(names.ANNOTATION_DELETION_COST) == str(DRAINED_COST),
        terminating=bool(metadata.get("deletionTimestamp")),
        ended_at=_ended_at(pod),
        grace_ends_at=epoch(metadata.get("deletionTimestamp")),
        assigned=bool((pod.get("spec") or {}).get("nodeName")),
        pending=status.get("phase") == "Pending",
        restarts=int(runtime.get("restartCount") or 0),
        out_of_memory=_terminated(runtime).get("reason") == OUT_OF_MEMORY,
        refusal=refusal,
        image_failure=_image_failure(pod, runtime),
        device_fault=device_fault(_terminated(runtime)),
        watchdog=_said_with(names.EXIT_WATCHDOG, _terminated(runtime)),
        ends=int(runtime.get("restartCount") or 0) + (not (runtime.get("state") or {}).get("running")),
        unhealthy=_unhealthy(runtime),
        quarantined_at=epoch(notes.get(names.ANNOTATION_QUARANTINED_AT)),
        prefill=notes.get(names.ANNOTATION_SERVING_ROLE) == names.SERVING_ROLE_PREFILL,
        ops_keys=notes.get(names.ANNOTATION_OPS_KEYS, "") if _reads_ops_keys(pod) else None,
        server_name=pod_tls.server_name(pod),
        last_words=_last_words(pod, runtime),
        reading=reading,
        node=str((pod.get("spec") or {}).get("nodeName") or ""),
    )


def with_reading(before: Replica, pod: Json, reading: RuntimeState | None) -> Replica:
    """The replica of the same pod object with another reading, as `replica` makes it, without parsing the pod again."""
    phase = before.phase
    if _phase_word(before.reading) != _phase_word(reading):
        runtime = _runtime((pod.get("status") or {}).get("containerStatuses") or ())
        phase = _phase(pod, runtime, before.refusal, reading)
    return structs.replace(before, reading=reading, phase=phase)


def _phase_word(reading: RuntimeState | None) -> str:
    return reading.phase if reading is not None else ""


def epoch(text: object) -> float | None:
    """Epoch seconds of an RFC 3339 time; None for anything else."""
    try:
        return datetime.fromisoformat(str(text)).timestamp() if text else None
    except ValueError:
        return None


def refusal_line(terminated: Json) -> str:
    """The line with which `kvasir serve` refused model or options; empty when this is no such end.

    The message may hold the tail of the log, so the last line that starts with the prefix counts.
    """
    return _said_with(names.EXIT_REFUSED, terminated)


def device_fault(terminated: Json) -> str:
    """The line in which `kvasir serve` reported that its device failed; empty when it ended in another way."""
    return _said_with(names.EXIT_DEVICE, terminated)


def _said_with(code: int, terminated: Json) -> str:
    """The line with which `kvasir serve` explained an end with this code; empty for another end."""
    if terminated.get("exitCode") != code:
        return ""
    lines = str(terminated.get("message") or "").splitlines()
    found = [line.strip() for line in lines if line.strip().startswith(names.REFUSAL_PREFIX)]
    return found[-1].removeprefix(names.REFUSAL_PREFIX) if found else ""


def _unhealthy(runtime: Json) -> tuple[str, ...]:
    """Devices of the container that the kubelet calls unhealthy, where it reports health at all."""
    resources = [r for a in runtime.get("allocatedResourcesStatus") or () for r in a.get("resources") or ()]
    return tuple(str(r.get("resourceID", "")) for r in resources if r.get("health") == "Unhealthy")


def _phase(pod: Json, runtime: Json, refusal: str, reading: RuntimeState | None) -> Phase:
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    ready = _condition(status, "Ready").get("status") == "True"
    if metadata.get("deletionTimestamp"):
        return "draining"
    if status.get("phase") == "Failed" or (not ready and (refusal or _failing(runtime))):
        return "failed"
    if (metadata.get("annotations") or {}).get(names.ANNOTATION_DRAIN) or (reading and reading.phase == "draining"):
        return "draining"
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return "unschedulable"
    if ready:
        return "ready"
    return "loading" if reading and reading.phase != "starting" else "starting"


def _failing(runtime: Json) -> bool:
    waiting = ((runtime.get("state") or {}).get("waiting") or {}).get("reason")
    if waiting in FAILED_WAITS:
        return True
    died = bool(_terminated(runtime).get("exitCode"))
    return died and int(runtime.get("restartCount") or 0) >= RESTARTS_OF_A_FAILURE


def _last_words(pod: Json, runtime: Json) -> str:
    scheduled = _condition(pod.get("status") or {}, "PodScheduled")
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or "")
    if ended_by_kubelet := kubelet_end(pod):
        return ended_by_kubelet
    if unpulled := _image_failure(pod, runtime):
        return unpulled
    waiting = (runtime.get("state") or {}).get("waiting") or {}
    ended = _terminated(runtime)
    if fault := device_fault(ended):
        return fault[:300]
    if ended:
        lines = str(ended.get("message") or "").strip().splitlines()
        how = f"exit code {ended.get('exitCode')}, {ended.get('reason') or 'Error'}{_limit(pod, ended)}"
        return f"{lines[-1].strip()[:300]} ({how})" if lines else how
    if waiting.get("reason") in FAILED_WAITS:
        return f"{waiting['reason']}: {waiting.get('message') or ''}"[:300]
    return str((pod.get("status") or {}).get("message") or "")[:300]


def _ended_at(pod: Json) -> float | None:
    """When the pod was over, by its condition Ready; None while it is not."""
    if not has_ended(pod):
        return None
    since = epoch(_condition(pod.get("status") or {}, "Ready").get("lastTransitionTime"))
    return since or epoch((pod.get("metadata") or {}).get("creationTimestamp")) or 0.0


def _image_failure(pod: Json, runtime: Json) -> str:
    """The image and the words of the registry or the kubelet. Between two attempts the kubelet repeats those of the
    last one behind its own, or has none; the sentence must not change with every attempt."""
    waiting = (runtime.get("state") or {}).get("waiting") or {}
    if waiting.get("reason") not in IMAGE_WAITS:
        return ""
    image = str(_spec(pod).get("image") or "")
    words = str(waiting.get("message") or "").removeprefix(f'Back-off pulling image "{image}"')
    words = words.removeprefix(": ErrImagePull").removeprefix(": ")
    return f"image {image} cannot be pulled: {words or waiting['reason']}"[:MOST_IMAGE_WORDS]


def _spec(pod: Json) -> Json:
    """The runtime's container as it was asked for."""
    containers = (pod.get("spec") or {}).get("containers") or ()
    found: Json = next((c for c in containers if c.get("name") == names.CONTAINER_RUNTIME), {})
    return found


def _limit(pod: Json, ended: Json) -> str:
    """The memory that was not enough, for one that ended for want of it."""
    if ended.get("reason") != OUT_OF_MEMORY:
        return ""
    limit = ((_spec(pod).get("resources") or {}).get("limits") or {}).get("memory")
    return f" at its limit of {limit}" if limit else ""


def _terminated(runtime: Json) -> Json:
    """How the container ended last, whether it is still down or has been restarted."""
    now = (runtime.get("state") or {}).get("terminated")
    return now or (runtime.get("lastState") or {}).get("terminated") or {}


def _runtime(statuses: Iterable[Json]) -> Json:
    return next((status for status in statuses if status.get("name") == names.CONTAINER_RUNTIME), {})


def _true_since(status: Json, kind: str) -> float | None:
    condition = _condition(status, kind)
    return epoch(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None


def _condition(status: Json, kind: str) -> Json:
    return next((c for c in status.get("conditions") or () if c.get("type") == kind), {})


def _reads_ops_keys(pod: Json) -> bool:
    return any(one.get("name") == names.OPS_KEYS_VOLUME for one in (pod.get("spec") or {}).get("volumes") or ())


def _ops_port(pod: Json) -> int:
    for container in (pod.get("spec") or {}).get("containers") or ():
        for port in container.get("ports") or ():
            if port.get("name") == names.PORT_OPS_NAME:
                return int(port["containerPort"])
    return names.PORT_OPS
