"""Probes of a runtime pod: every threshold in one place. All read the ops port, which clients cannot reach.

How long a start may take follows from the model's size, since reading the weights is what takes long.
"""

from typing import Final

from kvasir_api import names
from kvasir_api.quantity import parse
from kvasir_kube.kinds import Json
from kvasir_operator.observed.service import Observed
from kvasir_operator.stages import Placement

STARTUP_BASE_S: Final = 900
"""What does not depend on the size: processes, compilation of kernels, graphs, the first steps."""
SLOWEST_READ: Final = 25_000_000
"""Bytes per second below which a disk counts as broken: a congested network file system gives more."""
SLOWEST_DOWNLOAD: Final = 10_000_000
"""Bytes per second from a hub, below which its network counts as broken."""
STARTUP_TRIES: Final = 12
STARTUP_PERIOD_S: Final = 5
ANSWER_S: Final = 5
"""So much earlier than the kubelet gives up the runtime says how far it is."""
LISTENS_S: Final = 2
"""A runtime listens before anything slow happens: 0.3 seconds after its start, and a busy node takes longer."""
KILLED_GRACE_S: Final = 15
"""For a replica that is killed because it does not live: streams are cut in any case."""
STARTUP_MOST_S: Final = 6 * 3600
STARTUP_UNKNOWN_S: Final = 3600
DOWNLOAD_MOST_S: Final = 10 * 86_400
"""8.64 TB. A runtime holds a probe's answer for at most a day, and each of STARTUP_TRIES has to be shorter."""


def probes(model_bytes: int, download_bytes: int = 0, *, tls: bool = False) -> Json:
    """The three probes, keyed as in a container. model_bytes: what is read at the start, 0 for unknown.

    download_bytes: what is fetched before. tls: the port speaks it; the kubelet verifies no certificate.
    """
    made = _plain_probes(startup_s(model_bytes, download_bytes))
    for probe in made.values() if tls else ():
        probe["httpGet"]["scheme"] = "HTTPS"
    return made


def _plain_probes(start_s: int) -> Json:
    return {
        "startupProbe": _startup(start_s),
        # The gateway leaves a pod by its own readings within a second or two; this is for plain Services.
        "readinessProbe": _probe(names.PATH_READYZ, period_s=1, timeout_s=5, failures=2),
        # A runtime ends by itself when its engine stands still. Only one that does not even do that is killed here; it
        # has nothing to drain, and its node's other pods may be why it is slow.
        "livenessProbe": {
            **_probe(names.PATH_LIVEZ, period_s=10, timeout_s=10, failures=5),
            "terminationGracePeriodSeconds": KILLED_GRACE_S,
        },
    }


def startup_s(model_bytes: int, download_bytes: int = 0) -> int:
    """Seconds until a replica that is not ready is believed to hang."""
    read_s = min(STARTUP_MOST_S, STARTUP_BASE_S + model_bytes // SLOWEST_READ) if model_bytes else STARTUP_UNKNOWN_S
    return read_s + min(DOWNLOAD_MOST_S, download_bytes // SLOWEST_DOWNLOAD)


def model_bytes(seen: Observed, placed: Placement) -> int:
    """What one replica reads at its start: as forecast, or at most the memory that must hold it; 0 for unknown."""
    if placed.forecast is not None and placed.forecast.weights_bytes:
        return placed.forecast.weights_bytes
    asked = seen.spec.resources
    if not asked.accelerator.count:
        return int(parse(asked.memory))
    return int(parse(placed.accelerator.memory)) * asked.accelerator.count if placed.accelerator else 0


def _startup(limit_s: int) -> Json:
    """The runtime answers when the model is loaded: a probe that fails on the way leaves a Warning event each time.

    A replica that hangs is killed after limit_s; one that does not even listen after STARTUP_TRIES periods.
    """
    timeout_s = -(-limit_s // STARTUP_TRIES)
    path = f"{names.PATH_STARTUPZ}?wait_s={timeout_s - ANSWER_S}"
    probe = _probe(path, period_s=STARTUP_PERIOD_S, timeout_s=timeout_s, failures=STARTUP_TRIES)
    return {"initialDelaySeconds": LISTENS_S, **probe}


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": names.PORT_OPS_NAME, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }
