"""Every field of the spec has an effect: changing it changes the pod, the scaling policy, the rollout or a deadline.

A field without a case here fails the first test, so none can be added that does nothing; one without a case on a
cluster fails the last.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fakes.effects import EFFECTS, ELSEWHERE
from fakes.fields import CASES, with_value
from fakes.load import NOW, steady
from fakes.manifests import service
from fakes.stages import pod_template, resolved
from kvasir_api import crd, names
from kvasir_api.roles import PrefillRole
from kvasir_api.state import RuntimeState, ServedTotals
from kvasir_operator.desired.inspection import inspection_plan
from kvasir_operator.observed.replica import Replica, epoch
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings
from kvasir_operator.rollout.plan import plan
from kvasir_operator.scaling.policy import ScalingPolicy, policy
from kvasir_operator.scaling.prefill_replicas import NOTHING, prefill_replicas
from kvasir_operator.status.progress import Progress, overdue

SETTINGS = OperatorSettings(
    runtime_image="gpu:1", runtime_image_cpu="cpu:1", model_dirs=("/srv",), otlp_traces_endpoint="http://collector:4318"
)
CLASSES = [
    {"metadata": {"name": "a"}, "spec": {"memory": "24Gi", "pricePerHour": 2, "pod": {"nodeSelector": {"gpu": "a"}}}},
    {"metadata": {"name": "b"}, "spec": {"memory": "80Gi", "pricePerHour": 9, "pod": {"nodeSelector": {"gpu": "b"}}}},
    {
        "metadata": {"name": "c"},
        "spec": {"memory": "24Gi", "pricePerHour": 1, "spot": True, "pod": {"nodeSelector": {"gpu": "c"}}},
    },
]
SERVED = {
    "old": ServedTotals(answered=100, ttft_s=10.0, first_tokens=100),
    "new": ServedTotals(answered=100, failed=4, ttft_s=99.0, first_tokens=99),
}
REFUSED = {"phase": "failed", "refusal": "no config.json"}
FULL = {"phase": "unschedulable", "assigned": False, "last_words": "0/1 nodes: 1 Insufficient nvidia.com/gpu"}
ROLLOUTS: tuple[tuple[list[dict[str, Any]], int], ...] = (
    ([], 0),
    ([{"phase": "ready"}], 1),
    ([REFUSED], 0),
    ([FULL], 0),
)
"""Replicas of the new revision beside four of the old one, and the step that status tells of."""
OF_THE_CLUSTER = {"replicas", "resources.accelerator.fallbackSeconds", "rollout.reclass"}
"""Fields whose effect only a cluster shows."""


def _leaves(node: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, child in node.get("properties", {}).items():
        here = f"{path}.{name}".lstrip(".")
        if child["type"] == "array" and "properties" in child["items"]:
            yield from _leaves(child["items"], f"{here}[]")
        elif "properties" in child:
            yield from _leaves(child, here)
        else:
            yield here


def _rollout(spec: dict[str, Any], *, new: list[dict[str, Any]], step: int) -> Any:
    """Where a rollout from old to new heads, and its next counts."""
    workloads = [_workload("old", 4), _workload("new", len(new))]
    pods = [
        Replica(name=f"o{i}", revision="old", phase="ready", reading=RuntimeState(served=SERVED["old"]))
        for i in range(4)
    ]
    pods += [
        Replica(name=f"n{i}", revision="new", reading=RuntimeState(served=SERVED["new"]), **p)
        for i, p in enumerate(new)
    ]
    status = {"currentRevision": "new", "lastGoodRevision": "old", "step": step, "stepSince": "2026-01-01T00:00:00Z"}
    obj = service(**spec) | {"status": {"rollout": status}}
    seen = observed(
        obj, revisions=[_revision("old", 1), _revision("new", 2)], deployments=workloads, replicas=pods, svc=None
    )
    return plan(seen, "new", wanted=4, now=epoch("2026-01-01T00:00:30Z") or 0.0)


def _owned(revision: str) -> dict[str, Any]:
    owner = {"controller": True, "uid": "uid-tiny"}
    return {"name": f"tiny-{revision}", "labels": {names.LABEL_REVISION: revision}, "ownerReferences": [owner]}


def _workload(revision: str, replicas: int) -> dict[str, Any]:
    return {"metadata": _owned(revision), "spec": {"replicas": replicas}}


def _revision(revision: str, number: int) -> dict[str, Any]:
    template = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}
    return {"metadata": _owned(revision), "revision": number, "data": {"inputs": {}, "template": template}}


def _effects(spec: dict[str, Any]) -> tuple[Any, ...]:
    seen = observed(service(**spec), revisions=(), deployments=(), replicas=(), svc=None, classes=CLASSES)
    waited = Progress(step=("new", 1, 0, 4, 0), since=0.0)
    assert seen.spec.autoscaling is not None
    return (
        pod_template(seen, "rev", SETTINGS),
        inspection_plan(resolved(seen, SETTINGS), SETTINGS, wanted=1, written=True, now=0.0),
        policy(seen.spec.autoscaling),
        _prefill(seen.spec.roles.prefill),
        *(_rollout(spec, new=new, step=step) for new, step in ROLLOUTS),
        overdue(waited, seen, 100.0),
        _reductions(spec),
    )


def _prefill(role: PrefillRole | None) -> tuple[int, ...]:
    """Replicas for prompts, without any and with as many as take all that there may be."""
    loads = (steady(replicas=9), steady(replicas=9, waiting=1, waiting_tokens=1e6))
    decided = [prefill_replicas(role, load, NOTHING, ScalingPolicy(), now=NOW) for load in loads if role]
    return tuple(one.replicas for one in decided)


def _reductions(spec: dict[str, Any]) -> tuple[str, ...]:
    """What is reduced of a service whose replica does not fit."""
    asked = resolved(observed(service(**spec), revisions=(), deployments=(), replicas=(), svc=None), SETTINGS).revision
    pod = Replica(name="p", revision=asked.id if asked else "", phase="failed", refusal="TooSmall: 9 GiB")
    seen = observed(service(**spec), revisions=(), deployments=(), replicas=[pod], svc=None)
    return resolved(seen, SETTINGS).reductions


def leaves() -> set[str]:
    schema = crd.definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return set(_leaves(schema["properties"]["spec"]))


def test_every_field_has_a_case() -> None:
    assert leaves() - set(CASES) - OF_THE_CLUSTER == set()


@pytest.mark.parametrize("path", sorted(CASES))
def test_changing_the_field_changes_something(path: str) -> None:
    one, other = CASES[path]
    assert _effects(with_value(path, one)) == _effects(with_value(path, one))
    assert _effects(with_value(path, one)) != _effects(with_value(path, other))


def test_every_field_is_changed_on_a_cluster() -> None:
    """Those that shape pods by one table, the others by another, a few by a test that tells more."""

    def made(path: str, value: Any) -> Any:
        seen = observed(service(**with_value(path, value)), revisions=(), deployments=(), replicas=(), svc=None)
        return pod_template(seen, "rev", SETTINGS)

    shaping = {path for path, (one, other) in CASES.items() if made(path, one) != made(path, other)}
    assert leaves() - shaping - set(EFFECTS) - set(ELSEWHERE) == set()
    assert len(shaping) > 40
    assert set(EFFECTS) <= leaves()


@pytest.mark.parametrize(("field", "where"), ELSEWHERE.items())
def test_what_needs_a_story_has_one(field: str, where: str) -> None:
    path, name = where.split("::")
    found = (Path(__file__).parents[3] / path).read_text().partition(f"def {name}(")[2].partition("\nasync def ")[0]
    assert f'"{field.rsplit(".", maxsplit=1)[-1]}"' in found
