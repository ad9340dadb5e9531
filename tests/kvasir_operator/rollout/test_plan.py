"""The workloads of a rollout: which of them are still needed."""

import pytest

from fakes.manifests import service
from kvasir_api import names
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import observed
from kvasir_operator.rollout.plan import plan

READY = Replica(name="new", revision="new", phase="ready", ready_at=9.0)
NOW = 100.0


def counts(*old):
    """Of a rollout that is over, with such replicas of the revision before."""
    owner = {"controller": True, "uid": "uid-tiny"}
    of = {
        name: {"name": f"tiny-{name}", "labels": {names.LABEL_REVISION: name}, "ownerReferences": [owner]}
        for name in ("old", "new")
    }
    seen = observed(
        service(replicas=1),
        revisions=[{"metadata": of["old"], "revision": 1}, {"metadata": of["new"], "revision": 2}],
        deployments=[
            {"metadata": of["old"], "spec": {"replicas": 0}},
            {"metadata": of["new"], "spec": {"replicas": 1}},
        ],
        replicas=[READY, *old],
        svc=None,
    )
    return plan(seen, "new", wanted=1, now=NOW).counts


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
    assert counts(*old) == want
