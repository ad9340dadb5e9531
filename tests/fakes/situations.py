"""Situations of a service: what the operator may find when it composes a status."""

from typing import Any

from hypothesis import strategies as st

from fakes.manifests import service
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.world import observed
from kvasir_operator.status.findings import Findings

NOW = "2026-01-01T12:00:00Z"
ELASTIC = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}
PHASES = ("starting", "loading", "ready", "draining", "failed", "unschedulable")


def replica(phase: Any, *, revision: str = "new", name: str = "pod", **fields: Any) -> Replica:
    """A pod of the new revision."""
    return Replica(name=name, revision=revision, phase=phase, **fields)


def findings(*replicas: Replica, obj: Any = None, now: str = NOW, **fields: Any) -> Findings:
    """A service of generation 3 with these pods, of which one is wanted."""
    seen = observed(obj or service(generation=3), revisions=(), deployments=(), replicas=replicas, svc=None)
    return Findings(**{"seen": seen, "now": now, "current": "new", "wanted": 1, **fields})


@st.composite
def situations(draw: Any) -> Findings:
    """Any of them."""
    replicas = [
        Replica(
            name=f"p{i}",
            revision=draw(st.sampled_from(["new", "old"])),
            phase=draw(st.sampled_from(PHASES)),
            terminating=draw(st.booleans()),
            refusal=draw(st.sampled_from(["", "no config.json"])),
        )
        for i in range(draw(st.integers(0, 4)))
    ]
    fault = draw(st.sampled_from(["", "", "InvalidSpec", "NameConflict"]))
    return findings(
        *replicas,
        obj=service(generation=draw(st.integers(1, 3)), **draw(st.sampled_from([{}, ELASTIC]))),
        current="" if fault else "new",
        wanted=draw(st.integers(0, 3)),
        fault_reason=fault,
        blocked=draw(st.sampled_from([(), ("Service/x",)])),
        overdue=draw(st.booleans()),
        missing=draw(st.sampled_from([(), ("p0",)])),
    )
