"""Replicas that are killed for want of memory: what is said, and when waiting is given up."""

import pytest

from fakes.manifests import pod
from fakes.situations import findings
from fakes.situations import replica as situated
from kvasir_operator.observed.replica import replica
from kvasir_operator.status.summary import summary

WORDS = "exit code 137, OOMKilled at its limit of 4Gi"


def killed(restarts):
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    found = pod("p0", container={"restartCount": restarts, "state": {"terminated": ended}})
    found["spec"]["containers"] = [{"name": "runtime", "resources": {"limits": {"memory": "4Gi"}}}]
    return found


def test_the_limit_is_among_the_last_words():
    seen = replica(killed(1), None)
    assert (seen.out_of_memory, seen.last_words) == (True, WORDS)


@pytest.mark.parametrize(
    ("restarts", "mode", "reason"), [(2, "reconciling", "CrashLooping"), (3, "stalled", "OutOfMemory")]
)
def test_memory_that_is_too_small_again_and_again_is_stalled_with_advice(restarts, mode, reason):
    seen = replica(killed(restarts), None)
    victim = situated("failed", restarts=restarts, out_of_memory=seen.out_of_memory, last_words=seen.last_words)
    answer = summary(findings(victim))
    assert (answer.mode, answer.reason) == (mode, reason)
    assert WORDS in answer.message
    assert ("spec.resources.memory" in answer.message) is (mode == "stalled")


def test_one_that_serves_beside_it_is_not_stalled():
    victim = situated("failed", restarts=5, out_of_memory=True, last_words=WORDS)
    assert summary(findings(situated("ready", name="other"), victim, wanted=2)).mode == "reconciling"
