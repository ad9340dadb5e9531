"""Situations of a service: what the operator may find when it composes a status."""

from typing import Any

from hypothesis import strategies as st

from fakes.manifests import service
from kvasir_api.accelerator import AcceleratorClassSpec, Compute
from kvasir_api.inspection import Prediction
from kvasir_api.served_names import NameConflict
from kvasir_api.state import RuntimeState
from kvasir_api.status import AutoscalingStatus, ClassForecast
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import ForeignObject, Observed, Revision, observed
from kvasir_operator.stages import (
    Applied,
    ClassChoice,
    Placement,
    Resolved,
    RolloutPlan,
    RolloutTarget,
    ScalerResult,
    Violation,
)
from kvasir_operator.status.compose import compose, document
from kvasir_operator.status.inputs import StatusInputs

NOW = "2026-01-01T12:00:00Z"
LATER = "2026-01-01T12:05:00Z"
ELASTIC = {"autoscaling": {"minReplicas": 1, "maxReplicas": 4}}
PHASES = ("starting", "loading", "ready", "draining", "failed", "unschedulable")
READINGS = (
    None,
    RuntimeState(device="cpu", kernels="cpu"),
    RuntimeState(device="cpu", kernels="cpu", fallback="no compiler"),
    RuntimeState(locked="no key"),
)
FORECASTS = (
    None,
    Prediction(verdict="Fits", kv_tokens=64, requests=1, weights_bytes=9, message="weights"),
    Prediction(verdict="Unknown", message="x" * 5000),
    Prediction(verdict="TooSmall", weights_bytes=9),
)
SCALINGS = (None, *(AutoscalingStatus(desired_replicas=4, raw_replicas=raw) for raw in (3, 4, 5)))
SCALED = set(ScalerResult.__dataclass_fields__) - {"wanted", "status"}
"""Parts of the autoscaler's result that findings() takes by their names."""
TAKEN = (NameConflict(served_name="tiny", holder="other/first", refused=True),)
COURSES = (
    None,
    RolloutTarget(revision="new", phase="Progressing"),
    RolloutTarget(revision="new", phase="Canary", step=1, since=1.0, why="waits"),
    RolloutTarget(revision="new", phase="Held", why="worse"),
    RolloutTarget(revision="new", phase="Paused"),
    RolloutTarget(revision="old", phase="RolledBack", rolled_back="new", why="given up"),
)


def replica(phase: Any, *, revision: str = "new", name: str = "pod", **fields: Any) -> Replica:
    """A pod of the new revision."""
    return Replica(name=name, revision=revision, phase=phase, **fields)


def findings(
    *replicas: Replica,
    obj: Any = None,
    now: str = NOW,
    seen: Observed | None = None,
    current: str = "new",
    rollout: RolloutTarget | None = None,
    wanted: int = 1,
    overdue: bool = False,
    waiting: str = "",
    gateway_url: str = "",
    name_conflicts: tuple[NameConflict, ...] = (),
    **fields: Any,
) -> StatusInputs:
    """A service of generation 3 with these pods, of which one is wanted. fields: parts of the stages by name."""
    obj = obj or service(generation=3)
    seen = seen or observed(
        obj, revisions=(), deployments=(), replicas=replicas, svc=None, name_conflicts=name_conflicts
    )
    asked, broken, why = (fields.pop(name, "") for name in ("asked", "fault_reason", "fault_message"))
    resolved = Resolved(
        observed=seen,
        placement=_placement(fields),
        violation=Violation(reason=broken, message=why) if broken else None,
        revision=Revision(id=asked, number=1, inputs={}, template={}) if asked else None,
    )
    scaler = ScalerResult(
        wanted=wanted,
        status=fields.pop("autoscaling", None),
        **{name: fields.pop(name) for name in SCALED & set(fields)},
    )
    target = rollout or (RolloutTarget(revision=current) if current else None)
    return StatusInputs(
        resolved=resolved,
        scaler=scaler,
        waiting=waiting,
        plan=RolloutPlan(target=target, counts={}, actions=()) if target else None,
        applied=Applied(**fields),
        overdue=overdue,
        now=now,
        gateway_url=gateway_url,
    )


def _placement(fields: dict[str, Any]) -> Placement:
    """On the class h100, of which slow_below_percent is declared."""
    compute = Compute(degraded_below_percent=fields.pop("slow_below_percent", 0))
    return Placement(
        choice=ClassChoice(name="h100"),
        accelerator=AcceleratorClassSpec(memory="80Gi", compute=compute),
        forecast=fields.pop("forecast", None),
        forecasts=fields.pop("forecasts", ()),
        roofline=fields.pop("roofline", None),
    )


def again(found: StatusInputs, *replicas: Replica, now: str = LATER, **fields: Any) -> StatusInputs:
    """The next findings, after the status of these was written."""
    status, _ = compose(found)
    obj = service(generation=3) | {"status": document(status)}
    return findings(*replicas, obj=obj, now=now, **fields)


@st.composite
def situations(draw: Any) -> StatusInputs:
    """Any of them."""
    replicas = [
        Replica(
            name=f"p{i}",
            revision=draw(st.sampled_from(["new", "old"])),
            phase=draw(st.sampled_from(PHASES)),
            terminating=draw(st.booleans()),
            refusal=draw(st.sampled_from(["", "no config.json", "TooSmall: 9 GiB", "KeysMissing: no key"])),
            reading=draw(st.sampled_from(READINGS)),
        )
        for i in range(draw(st.integers(0, 4)))
    ]
    fault = draw(st.sampled_from(["", "", "InvalidSpec", "TooSmall"]))
    return findings(
        *replicas,
        obj=service(generation=draw(st.integers(1, 3)), **draw(st.sampled_from([{}, ELASTIC]))),
        current="" if fault else "new",
        wanted=draw(st.integers(0, 3)),
        fault_reason=fault,
        fault_message=fault and "spec.model.uri cannot be",
        rollout=None if fault else draw(st.sampled_from(COURSES)),
        refused=draw(st.sampled_from(["", "", "the API server refused: quota"])),
        waiting=draw(st.sampled_from(["", "", "a pod reads the model's config"])),
        forecast=draw(st.sampled_from(FORECASTS)),
        forecasts=(ClassForecast(name="l4", fit="Fits", kv_tokens=64, requests=1),) if draw(st.booleans()) else (),
        foreign=draw(st.sampled_from([(), (ForeignObject("Service/x"),)])),
        overdue=draw(st.booleans()),
        autoscaling=draw(st.sampled_from(SCALINGS)),
        missing=draw(st.sampled_from([(), ("p0",)])),
        name_conflicts=draw(st.sampled_from([(), TAKEN])),
    )
