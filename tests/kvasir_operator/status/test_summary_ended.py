"""Pods that their kubelet has ended and that are still listed: what is told of them, and for how long."""

import pytest
from msgspec import structs

from fakes.manifests import service
from fakes.situations import NOW, findings, replica
from kvasir_operator.observed.replica import epoch
from kvasir_operator.status.compose import compose

READY, LOADING = replica("ready"), replica("loading")
FAILED = replica("failed", name="bad", last_words="exit code 137, OOMKilled")
UNPLACED = replica("unschedulable", name="big", last_words="0/1 nodes are available")


def condition(found, kind="Ready"):
    status, _ = compose(found)
    return next((c for c in status.conditions if c.type == kind), None)


EVICTED = replica("failed", name="gone", ended_at=epoch(NOW), last_words="Evicted: The node was low on memory.")
DEADLINE_S = 60


@pytest.mark.parametrize(
    ("others", "reason", "words"),
    [
        ([UNPLACED], "Unschedulable", "big: 0/1 nodes are available"),
        ([FAILED], "CrashLooping", "bad fails: exit code 137, OOMKilled"),
        ([LOADING], "ModelLoading", "pod loads the model; gone has ended: Evicted: The node was low on memory."),
        ([], "MinimumNotAvailable", "0 of 1 replica ready; gone has ended: Evicted: The node was low on memory."),
    ],
)
def test_a_pod_that_its_kubelet_ended_hides_no_reason_of_the_one_in_its_place(others, reason, words):
    found = findings(EVICTED, *others)
    assert condition(found).reason == reason
    assert condition(found).message.endswith(words)


@pytest.mark.parametrize(("ago_s", "named"), [(DEADLINE_S - 1, True), (DEADLINE_S + 1, False)])
def test_an_eviction_of_long_ago_is_no_reason_of_today(ago_s, named):
    old = structs.replace(EVICTED, ended_at=epoch(NOW) - ago_s)
    rules = {"rollout": {"progressDeadlineSeconds": DEADLINE_S}}
    found = findings(old, READY, wanted=2, obj=service(**rules))
    assert (condition(found, "Degraded") is not None) is named
    assert ("gone" in condition(found).message) is named
