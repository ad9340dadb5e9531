"""Probes of a runtime pod: every threshold in one place. All ask the ops port, which clients cannot reach."""

from typing import Any, Final

from kvasir_api import names

Json = dict[str, Any]

STARTUP_S: Final = 3600
"""Loading the largest models from a slow disk takes tens of minutes; until then only the startup probe asks."""


def probes() -> Json:
    """The three probes, keyed as in a container."""
    return {
        "startupProbe": _probe(names.PATH_STARTUPZ, period_s=1, timeout_s=5, failures=STARTUP_S),
        # The gateway leaves a pod by its own readings within a second or two; this is for plain Services.
        "readinessProbe": _probe(names.PATH_READYZ, period_s=2, timeout_s=5, failures=3),
        # A restart costs a cold start, so a busy node gets a minute and a half before it is believed to hang.
        "livenessProbe": _probe(names.PATH_LIVEZ, period_s=10, timeout_s=10, failures=9),
    }


def _probe(path: str, *, period_s: int, timeout_s: int, failures: int) -> Json:
    return {
        "httpGet": {"path": path, "port": names.PORT_OPS_NAME, "scheme": "HTTP"},
        "periodSeconds": period_s,
        "timeoutSeconds": timeout_s,
        "failureThreshold": failures,
    }
