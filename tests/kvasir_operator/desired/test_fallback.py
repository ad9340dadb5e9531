"""Classes of which none had a node: when one is passed over, for how long that holds, and what is tried then."""

import pytest

from fakes.manifests import service
from fakes.stages import revision_of
from kvasir_operator.desired import fallback
from kvasir_operator.desired.accelerator import placement
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import observed

NOW = 10_000.0


def world(*replicas, full=(), pod_hash=None, classes=("h100", "a100", "l4"), shapes=None, **fields):
    """A service that prefers h100 to a100 to l4; each class has a pod of its own unless shapes says otherwise."""
    accelerator = {"count": 1, "classes": list(classes), **fields}
    obj = service(resources={"accelerator": accelerator})
    found = [
        {
            "metadata": {"name": n},
            "spec": {"memory": "80Gi", "pod": {"nodeSelector": {"gpu": (shapes or {}).get(n, n)}}},
        }
        for n in ("h100", "a100", "l4")
    ]
    made = observed(obj, revisions=(), deployments=(), replicas=replicas, svc=None, classes=found)
    said = {"unavailableClasses": list(full), "podHash": fallback.pod_hash(made.spec) if pod_hash is None else pod_hash}
    obj = obj | {"status": {"rollout": said}}
    return observed(obj, revisions=(), deployments=(), replicas=replicas, svc=None, classes=found)


def waiting(*, seconds, name="p", revision="r"):
    return Replica(name=name, revision=revision, phase="unschedulable", assigned=False, created=NOW - seconds)


def passed(seen):
    return fallback.unavailable_now(seen, placement(seen), revision="r", now=NOW)


@pytest.mark.parametrize(
    ("seen", "full"),
    [
        (world(), ()),
        (world(waiting(seconds=299)), ()),
        (world(waiting(seconds=300)), ("h100",)),
        (world(waiting(seconds=300), waiting(seconds=1, name="q")), ("h100",)),
        (world(waiting(seconds=60), fallbackSeconds=60), ("h100",)),
        (world(waiting(seconds=9999), fallbackSeconds=0), ()),
        # one that runs there, or has a node at least, keeps the class
        (world(waiting(seconds=900), Replica(name="q", revision="r", phase="ready")), ()),
        (world(waiting(seconds=900), Replica(name="q", revision="r", phase="starting")), ()),
        # pods of another revision say nothing of this class
        (world(waiting(seconds=900, revision="old")), ()),
        # there is nothing else to try
        (world(waiting(seconds=900), classes=("h100",)), ()),
        (world(waiting(seconds=900), classes=("h100", "missing")), ()),
        (world(waiting(seconds=900), classes=("h100", "a100"), shapes={"a100": "h100"}), ()),
        # the second one has no node either; when all were tried it begins anew
        (world(waiting(seconds=300), full=("h100",)), ("h100", "a100")),
        (world(waiting(seconds=300), full=("h100", "a100")), ("h100", "a100", "l4")),
        (world(waiting(seconds=300), full=("h100", "a100", "l4")), ("h100",)),
        # it holds while nothing changes, and no longer when the spec requests other pods
        (world(full=("h100",)), ("h100",)),
        (world(Replica(name="q", revision="r", phase="ready"), full=("h100",)), ("h100",)),
        (world(full=("h100",), pod_hash="other"), ()),
    ],
)
def test_a_class_is_passed_over_when_it_gave_no_pod_a_node(seen, full):
    assert passed(seen) == full


@pytest.mark.parametrize(
    ("full", "name", "why"),
    [
        ((), "h100", "h100 is there"),
        (("h100",), "a100", "h100 found no node; h100 does not exist; a100 is there"),
        (("h100", "a100", "l4"), "h100", "h100 is there"),
    ],
)
def test_the_next_class_is_taken(full, name, why):
    found = placement(world(full=full)).choice
    assert (found.name, found.considered) == (name, ("h100", "a100", "l4"))
    assert found.why.startswith(why.split("; ")[0])


def test_another_class_is_another_revision_and_patience_is_none():
    ids = [revision_of(world(full=full)) for full in ((), ("h100",))]
    assert len(set(ids)) == 2
    assert revision_of(world(fallbackSeconds=60)) == ids[0]
    assert fallback.pod_hash(world(fallbackSeconds=60).spec) == fallback.pod_hash(world().spec)
    assert fallback.pod_hash(world(classes=("a100", "h100")).spec) != fallback.pod_hash(world().spec)
