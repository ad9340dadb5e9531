"""Argo CD, Flux and kstatus read our statuses alike: the shipped script runs in a real Lua, the expressions in CEL."""

import json
from pathlib import Path
from typing import Any

import celpy
import pytest
import yaml
from celpy.adapter import json_to_cel
from hypothesis import given
from lupa.lua51 import LuaRuntime

from fakes.manifests import service
from fakes.situations import ELASTIC, findings, replica, situations
from kvasir_api import names
from kvasir_api.state import RuntimeState
from kvasir_operator.stages import RolloutTarget
from kvasir_operator.status.compose import compose, document

GITOPS = Path(__file__).parents[3] / "manifests" / "gitops"
LUA = LuaRuntime(unpack_returned_tuples=True)
SCRIPT = (GITOPS / "health.lua").read_text()
CLASS_SCRIPT = (GITOPS / "class-health.lua").read_text()
FLUX = yaml.safe_load((GITOPS / "flux.yaml").read_text())["spec"]["healthCheckExprs"][0]
CEL = celpy.Environment()
EXPRESSIONS = {
    name: CEL.program(CEL.compile(FLUX[expression]))
    for name, expression in {"InProgress": "inProgress", "Failed": "failed", "Current": "current"}.items()
}
READY, LOADING = replica("ready"), replica("loading")
OLD = replica("ready", revision="old", name="old")
BROKEN = replica("failed", name="bad", refusal="/models/x has no config.json")


def applied(found: Any) -> dict[str, Any]:
    status, _ = compose(found)
    metadata = {"name": "tiny", "generation": found.seen.generation}
    return {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "status": document(status)}


def kstatus(obj: dict[str, Any]) -> str:
    """The rules of kstatus for a kind that it does not know."""
    status = obj.get("status") or {}
    if status.get("observedGeneration") not in (None, obj["metadata"]["generation"]):
        return "InProgress"
    conditions = status.get("conditions") or []
    for condition in conditions:
        if condition["type"] in ("Reconciling", "Stalled") and condition["status"] == "True":
            return "InProgress" if condition["type"] == "Reconciling" else "Failed"
    ready = next((c for c in conditions if c["type"] == "Ready"), None)
    return "Current" if ready is None or ready["status"] == "True" else "InProgress"


def flux(obj: dict[str, Any]) -> str:
    """Flux asks in this order and takes the first that is true; none means that it goes on waiting."""
    known = {part: json_to_cel(obj[part]) for part in ("metadata", "status")}
    return next((name for name, program in EXPRESSIONS.items() if program.evaluate(known)), "InProgress")


def argo(obj: dict[str, Any], script: str = SCRIPT) -> tuple[str, str]:
    def table(value: Any) -> Any:
        if isinstance(value, dict):
            return LUA.table_from({name: table(item) for name, item in value.items()})
        return LUA.table_from([table(item) for item in value]) if isinstance(value, list) else value

    LUA.globals().obj = table(json.loads(json.dumps(obj)))
    health = LUA.execute(script)
    return health["status"], health["message"]


@pytest.mark.parametrize(
    ("found", "health", "words"),
    [
        (findings(READY), "Healthy", "1 replica ready"),
        (findings(wanted=0), "Suspended", "spec.replicas is 0"),
        (findings(READY, OLD, rollout=RolloutTarget(revision="new", phase="Paused")), "Suspended", "in revision new"),
        (findings(READY, OLD, rollout=RolloutTarget(revision="new", phase="Held")), "Progressing", "RolloutHeld: "),
        (findings(LOADING), "Progressing", "ModelLoading: "),
        (findings(BROKEN), "Degraded", "ModelLoadFailed: /models/x has no config.json"),
        (findings(LOADING, overdue=True), "Degraded", "ProgressDeadlineExceeded: no progress for 1800 s"),
        (findings(READY, BROKEN, wanted=2), "Progressing", "Scaling: "),
    ],
)
def test_argo_says(found: Any, health: str, words: str) -> None:
    said = argo(applied(found))
    assert said[0] == health
    assert words in said[1]


def test_one_failing_replica_beside_others_is_in_progress_and_slow_ones_are_degraded() -> None:
    failing = replica("failed", name="bad")
    found = findings(READY, failing, wanted=2, obj=service(generation=3, **ELASTIC))
    assert argo(applied(found)) == ("Progressing", "ReplicasFailing: bad: no reason was reported")
    slow = replica("ready", reading=RuntimeState(device="cpu", kernels="torch", fallback="no compiler"))
    health, words = argo(applied(findings(slow)))
    assert (health, words.partition(":")[0]) == ("Degraded", "SlowerKernels")


def test_an_accelerator_class_is_healthy() -> None:
    obj = {"kind": "AcceleratorClass", "spec": {"memory": "80Gi", "pricePerHour": 400}}
    assert argo(obj, CLASS_SCRIPT) == ("Healthy", "80Gi of memory, 400 per hour")
    assert argo({"kind": "AcceleratorClass"}, CLASS_SCRIPT)[0] == "Healthy"


def test_argo_learns_every_script() -> None:
    (made,) = yaml.safe_load((GITOPS / "kustomization.yaml").read_text())["configMapGenerator"]
    taught = dict(entry.split("=") for entry in made["files"])
    assert set(taught.values()) == {path.name for path in GITOPS.glob("*.lua")}
    prefix = f"resource.customizations.health.{names.GROUP}_"
    assert set(taught) == {prefix + names.KIND, prefix + names.ACCELERATOR_KIND}


@pytest.mark.parametrize("lag", [None, 2])
def test_a_spec_that_was_not_seen_yet_is_in_progress(lag: int | None) -> None:
    obj = applied(findings(READY))
    obj["status"] = {} if lag is None else {**obj["status"], "observedGeneration": lag}
    assert argo(obj)[0] == "Progressing"
    assert flux(obj) == "InProgress"


@given(situations())
def test_all_three_agree_on_every_status(found: Any) -> None:
    obj = applied(found)
    expected = kstatus(obj)
    assert flux(obj) == expected
    paused = any(condition["reason"] == "RolloutPaused" for condition in obj["status"]["conditions"])
    failing = any(
        condition["reason"] in ("ReplicasFailing", "DeviceFailed") for condition in obj["status"]["conditions"]
    )
    healthy = {
        "InProgress": {"Suspended" if paused else "Progressing"},
        "Failed": {"Degraded"},
        "Current": {"Healthy", "Suspended", "Degraded"} | ({"Progressing"} if failing else set()),
    }
    assert argo(obj)[0] in healthy[expected]
