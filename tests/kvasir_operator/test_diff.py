"""What is written, what is left alone, what is deleted."""

import copy

import pytest

from fakes.manifests import service
from fakes.stages import resolved
from kvasir_operator.desired.children import children
from kvasir_operator.diff import contains, diff, removals
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import observed
from kvasir_operator.observed.settings import OperatorSettings


def world(obj=None, made=()):
    """A service whose children are as given, in the form in which a server would hand them back."""
    found = [copy.deepcopy(m) for m in made]
    for manifest in found:
        manifest["metadata"]["uid"] = f"uid-{manifest['metadata']['name']}"
        if manifest["kind"] == "Deployment":
            manifest["spec"]["strategy"] = {"type": "RollingUpdate"}
            manifest["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "2"
    by_kind = lambda kind: [m for m in found if m["kind"] == kind]
    return observed(
        obj or service(resources={"cpu": "2000m"}),
        revisions=by_kind("ControllerRevision"),
        deployments=by_kind("Deployment"),
        replicas=(Replica(name="pod"),),
        svc=next(iter(by_kind("Service")), None),
        guards=[*by_kind("PodDisruptionBudget"), *by_kind("NetworkPolicy")],
    )


def wanted(seen, count=1):
    current = resolved(seen, OperatorSettings()).revision
    return children(seen, current, {current.id: count}, OperatorSettings())


def acts(writes):
    return [(w.verb, w.kind, w.new) for w in writes]


def test_first_time_everything_is_made():
    seen = world()
    assert acts(diff(seen, wanted(seen))) == [
        ("apply", "Service", True),
        ("apply", "PodDisruptionBudget", True),
        ("apply", "NetworkPolicy", True),
        ("apply", "ControllerRevision", True),
        ("apply", "Deployment", True),
    ]


def test_nothing_is_written_when_all_is_there():
    seen = world(made=wanted(world()))
    assert diff(seen, wanted(seen)) == ()


def test_only_a_changed_count_is_written():
    seen = world(made=wanted(world()))
    assert acts(diff(seen, wanted(seen, 3))) == [("apply", "Deployment", False)]


def test_workloads_without_a_wish_and_surplus_revisions_are_deleted():
    seen = world(made=wanted(world()))
    name = seen.revisions[0].name
    writes = diff(seen, [m for m in wanted(seen) if m["kind"] not in ("Deployment", "ControllerRevision")], [name])
    assert [(w.verb, w.kind, w.uid) for w in writes] == [
        ("delete", "Deployment", f"uid-{name}"),
        ("delete", "ControllerRevision", f"uid-{name}"),
    ]


@pytest.mark.parametrize(
    ("found", "want", "patch"),
    [
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 1, "b": 2}, {"a": 1}, {"b": None}),
        ({"a": {"b": 1, "c": {}}, "d": 0}, {"a": {"b": 1}, "d": 0}, {"a": {"c": None}}),
        ({"a": [{"x": 1}, {"x": 2}]}, {"a": [{"x": 1}]}, {"a": [{"x": 1}]}),
        # what is missing is left to the apply
        ({}, {"a": 1}, {}),
    ],
)
def test_what_others_wrote_is_taken_away(found, want, patch):
    assert removals(found, want) == patch


@pytest.mark.parametrize(
    ("found", "want", "answer"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": [{"x": 1, "default": 0}]}, {"a": [{"x": 1}]}, True),
        ({"limits": {"memory": "4Gi"}}, {"limits": {"memory": "4096Mi"}}, True),
        ({"limits": {"memory": "4Gi"}}, {"limits": {"memory": "4G"}}, False),
        ({"name": "1000m"}, {"name": "1"}, False),
        (None, {"a": 1}, False),
        ("x", [1], False),
    ],
)
def test_contains(found, want, answer):
    assert contains(found, want) is answer
