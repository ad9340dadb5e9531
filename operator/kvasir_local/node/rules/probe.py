"""Reads a probe and counts its results: thresholds decide when a container is started, ready or no longer alive."""

from dataclasses import dataclass
from enum import StrEnum

from kvasir_kube.kinds import Json
from kvasir_local.node.rules.kinds import ConfigError


class ProbeType(StrEnum):
    """The kind of a probe."""

    STARTUP = "startup"
    READINESS = "readiness"
    LIVENESS = "liveness"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpGet:
    """host: empty means the pod's address. Any status from 200 to 399 passes."""

    host: str
    port: int
    path: str
    scheme: str
    headers: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpSocket:
    """Passes when a connection opens. host: empty means the pod's address."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Exec:
    """Passes when the command, run inside the container, exits with 0."""

    command: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep:
    """A preStop hook that only waits."""

    seconds: float


ProbeHandler = HttpGet | TcpSocket | Exec
LifecycleHandler = HttpGet | Exec | Sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One probe of a container; times in seconds, thresholds in consecutive results.

    grace_s overrides the pod's on a kill.
    """

    role: ProbeType
    check: ProbeHandler
    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int
    grace_s: float | None


@dataclass(frozen=True, slots=True)
class ProbeTally:
    """passing: the result after thresholds; run: how many results in a row were `last`."""

    passing: bool
    last: bool | None = None
    run: int = 0


def initial(role: ProbeType) -> ProbeTally:
    """Before any result a container is alive, but neither started nor ready."""
    return ProbeTally(passing=role is ProbeType.LIVENESS)


def count(probe: Probe, tally: ProbeTally, passed: bool) -> ProbeTally:
    """The tally after one more result; passing changes at the threshold of equal results."""
    run = tally.run + 1 if tally.last is passed else 1
    needed = probe.success_threshold if passed else probe.failure_threshold
    return ProbeTally(passing=passed if run >= needed else tally.passing, last=passed, run=run)


def failed(probe: Probe, tally: ProbeTally) -> bool:
    """Whether the container must be killed: a startup or liveness probe has failed as often as it may."""
    lost = tally.last is False and tally.run >= probe.failure_threshold
    return lost and probe.role is not ProbeType.READINESS


def probes(container: Json) -> dict[ProbeType, Probe]:
    """The probes that a container declares. ConfigError when a named port does not exist or no check is given."""
    found = {}
    for role in ProbeType:
        source = container.get(f"{role}Probe")
        if source:
            found[role] = _probe(role, source, container)
    return found


def hook(container: Json) -> LifecycleHandler | None:
    """The preStop hook, if any."""
    source = (container.get("lifecycle") or {}).get("preStop")
    if not source:
        return None
    if "sleep" in source:
        return Sleep(seconds=float(source["sleep"]["seconds"]))
    found = _check(source, container)
    if isinstance(found, TcpSocket):
        raise ConfigError("a preStop hook cannot be a tcpSocket")
    return found


def _probe(role: ProbeType, source: Json, container: Json) -> Probe:
    grace = source.get("terminationGracePeriodSeconds")
    return Probe(
        role=role,
        check=_check(source, container),
        initial_delay_s=float(source.get("initialDelaySeconds") or 0),
        period_s=float(source.get("periodSeconds") or 10),
        timeout_s=float(source.get("timeoutSeconds") or 1),
        success_threshold=int(source.get("successThreshold") or 1),
        failure_threshold=int(source.get("failureThreshold") or 3),
        grace_s=None if grace is None else float(grace),
    )


def _check(source: Json, container: Json) -> ProbeHandler:
    if "exec" in source:
        return Exec(command=tuple(source["exec"]["command"]))
    if "tcpSocket" in source:
        tcp = source["tcpSocket"]
        return TcpSocket(host=tcp.get("host") or "", port=_port(tcp["port"], container))
    if "httpGet" not in source:
        raise ConfigError(f"a probe or hook of container {container['name']!r} names no check")
    http = source["httpGet"]
    path = http.get("path") or "/"
    return HttpGet(
        host=http.get("host") or "",
        port=_port(http["port"], container),
        path=path if path.startswith("/") else f"/{path}",
        scheme=(http.get("scheme") or "HTTP").lower(),
        headers=tuple((header["name"], header["value"]) for header in http.get("httpHeaders") or ()),
    )


def _port(port: int | str, container: Json) -> int:
    if isinstance(port, int):
        return port
    for declared in container.get("ports") or ():
        if declared.get("name") == port:
            return int(declared["containerPort"])
    if port.isdigit():
        return int(port)
    raise ConfigError(f"container {container['name']!r} declares no port named {port!r}")
