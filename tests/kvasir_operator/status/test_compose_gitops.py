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
from kvasir_operator.stages import RolloutTarget
from kvasir_operator.status.compose import compose, document

GITOPS = Path(__file__).parents[3] / "manifests" / "gitops"
LUA = LuaRuntime(unpack_returned_tuples=True)
SCRIPT = (GITOPS / "health.lua").read_text()
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


def argo(obj: dict[str, Any]) -> tuple[str, str]:
    def table(value: Any) -> Any:
        if isinstance(value, dict):
            return LUA.table_from({name: table(item) for name, item in value.items()})
        return LUA.table_from([table(item) for item in value]) if isinstance(value, list) else value

    LUA.globals().obj = table(json.loads(json.dumps(obj)))
    health = LUA.execute(SCRIPT)
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


def test_serving_with_a_failing_replica_is_degraded() -> None:
    failing = replica("failed", name="bad")
    found = findings(READY, failing, wanted=2, obj=service(generation=3, **ELASTIC))
    assert argo(applied(found)) == ("Degraded", "ReplicasFailing: bad: no reason was reported")


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
    healthy = {
        "InProgress": {"Suspended" if paused else "Progressing"},
        "Failed": {"Degraded"},
        "Current": {"Healthy", "Suspended", "Degraded"},
    }
    assert argo(obj)[0] in healthy[expected]
