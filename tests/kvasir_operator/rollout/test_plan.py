"""The workloads of a rollout: which of them are still needed."""

import pytest

from fakes.manifests import service
from kvasir_api import names
from kvasir_api.state import RuntimeState
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import observed
from kvasir_operator.rollout.plan import plan

READY = Replica(name="new", revision="new", phase="ready", ready_at=9.0)
ABLE = RuntimeState(phase="ready", kv_prefill=True)
NOW = 100.0


def planned(*replicas, wanted=1, prefill=0):
    """Of a rollout that is over: all replicas are of the new revision, but for those that have yet to end."""
    owner = {"controller": True, "uid": "uid-tiny"}
    of = {
        name: {"name": f"tiny-{name}", "labels": {names.LABEL_REVISION: name}, "ownerReferences": [owner]}
        for name in ("old", "new")
    }
    seen = observed(
        service(replicas=wanted),
        revisions=[{"metadata": of["old"], "revision": 1}, {"metadata": of["new"], "revision": 2}],
        deployments=[
            {"metadata": of["old"], "spec": {"replicas": 0}},
            {"metadata": of["new"], "spec": {"replicas": sum(r.revision == "new" for r in replicas)}},
        ],
        replicas=list(replicas),
        svc=None,
    )
    return plan(seen, "new", wanted=wanted, prefill=prefill, now=NOW)


@pytest.mark.parametrize(
    ("old", "want"),
    [
        ([], {"new": 1}),
        ([Replica(name="a", revision="old", phase="draining", terminating=True)], {"new": 1, "old": 0}),
        # A pod that its kubelet has ended stays as a record, for as long as nobody deletes it.
        ([Replica(name="a", revision="old", phase="failed", ended_at=5.0)], {"new": 1}),
    ],
)
def test_an_old_workload_stays_until_its_last_pod_has_ended(old, want):
    assert planned(READY, *old).counts == want


def test_a_replica_that_leaves_gets_no_role():
    """Both take the one that costs least."""
    three = [
        Replica(name=name, uid=name, revision="new", phase="ready", assigned=True, created=created, reading=ABLE)
        for name, created in (("a", 1.0), ("b", 2.0), ("c", 3.0))
    ]
    done = {(action.verb, action.replica.name) for action in planned(*three, wanted=2, prefill=1).actions}
    assert done == {("drain", "c"), ("prefill", "b")}
