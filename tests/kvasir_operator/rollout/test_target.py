"""Where a rollout heads: steps, pauses, verdicts, the way back; each from what is observed and what status says."""

from dataclasses import replace

import pytest
from msgspec import structs

from fakes.manifests import service
from kvasir_api import names
from kvasir_api.rollout import Analysis
from kvasir_api.state import RuntimeState, ServedTotals
from kvasir_operator.observed.replica import Replica
from kvasir_operator.observed.service import observed
from kvasir_operator.rollout.target import RevisionTraffic, judged, of, rollout_target

NOW = 1_767_225_600.0  # 2026-01-01T00:00:00Z
TIME = "2026-01-01T00:00:00Z"
STEPS = [{"replicaPercent": 25, "pauseSeconds": 60}, {"replicaPercent": 50}]
GOOD, BAD = ServedTotals(answered=100), ServedTotals(answered=100, failed=30)


def owned(revision):
    owner = {"controller": True, "uid": "uid-tiny"}
    return {"name": f"tiny-{revision}", "labels": {names.LABEL_REVISION: revision}, "ownerReferences": [owner]}


def world(*, old=4, new=0, ready=True, served=GOOD, refusal="", status=None, conditions=(), **rollout):
    """Old replicas that serve, and new ones; last good is old unless status says otherwise."""
    pods = [Replica(name=f"o{i}", revision="old", phase="ready", reading=RuntimeState(served=GOOD)) for i in range(old)]
    phase = "failed" if refusal else "ready" if ready else "loading"
    pods += [
        Replica(name=f"n{i}", revision="new", phase=phase, refusal=refusal, reading=RuntimeState(served=served))
        for i in range(new)
    ]
    said = {"currentRevision": "new", "lastGoodRevision": "old", **(status or {})}
    obj = service(rollout=rollout) | {"status": {"rollout": said, "conditions": list(conditions)}}
    revisions = [
        {"metadata": owned(r), "revision": n, "data": {"inputs": {}, "template": {}}}
        for n, r in enumerate(("old", "new"))
    ]
    workloads = [{"metadata": owned(r), "spec": {"replicas": n}} for r, n in (("old", old), ("new", new)) if n]
    return observed(obj, revisions=revisions, deployments=workloads, replicas=pods, svc=None)


def head(seen, *, wanted=4, now=NOW):
    found = rollout_target(seen, current="new", wanted=wanted, now=now)
    return found.revision, found.phase, found.cap, found.step


@pytest.mark.parametrize(
    ("seen", "answer"),
    [
        (world(), ("new", "Progressing", None, 0)),
        (world(old=0, new=4), ("new", "", None, 0)),
        (world(new=2, paused=True), ("new", "Paused", 2, 0)),
        # the first step requests its share and then makes it serve
        (world(steps=STEPS), ("new", "Progressing", 1, 1)),
        (world(new=1, ready=False, steps=STEPS), ("new", "Progressing", 1, 1)),
        (world(new=1, steps=STEPS), ("new", "Canary", 1, 1)),
        (world(new=1, steps=STEPS, status={"step": 1, "stepSince": "2025-12-31T23:59:01Z"}), ("new", "Canary", 1, 1)),
        (
            world(new=1, steps=STEPS, status={"step": 1, "stepSince": "2025-12-31T23:59:00Z"}),
            ("new", "Progressing", 2, 2),
        ),
        # the second has no pause: it ends when its replicas are ready
        (world(new=1, steps=STEPS, status={"step": 2}), ("new", "Progressing", 2, 2)),
        (world(new=2, steps=STEPS, status={"step": 2}), ("new", "Progressing", None, 3)),
        (world(new=3, steps=STEPS, status={"step": 3}), ("new", "Progressing", None, 3)),
        # a step that status tells of is another revision's: begin anew
        (world(new=1, steps=STEPS, status={"step": 2, "currentRevision": "x"}), ("new", "Canary", 1, 1)),
        (world(new=1, steps=STEPS, promote="new"), ("new", "Progressing", None, 0)),
        (world(new=1, steps=STEPS, promote="other"), ("new", "Canary", 1, 1)),
    ],
)
def test_steps_and_pauses(seen, answer):
    assert head(seen) == answer


@pytest.mark.parametrize(
    ("seen", "answer"),
    [
        # without an analysis nothing is judged
        (world(new=1, served=BAD), ("new", "Progressing", None, 0)),
        (world(new=1, served=BAD, analysis={}), ("new", "Held", 1, 0)),
        (world(new=1, served=BAD, analysis={}, autoRollback=True), ("old", "RolledBack", None, 0)),
        (world(new=1, served=BAD, analysis={}, autoRollback=True, promote="new"), ("new", "Progressing", None, 0)),
        (world(new=1, served=BAD, analysis={"minRequests": 101}), ("new", "Progressing", None, 0)),
        # a step waits for the requests that the analysis wants
        (
            world(new=2, steps=[{"replicaPercent": 50}], analysis={"minRequests": 500}, status={"step": 1}),
            ("new", "Canary", 2, 1),
        ),
        # refusals and lost time count for a rollback, not for a hold
        (world(new=1, refusal="no config.json"), ("new", "Progressing", None, 0)),
        (world(new=1, refusal="no config.json", autoRollback=True), ("old", "RolledBack", None, 0)),
        # what was given up stays given up until the spec changes, whatever its pods say now
        (world(status={"rolledBackRevision": "new", "message": "bad"}), ("old", "RolledBack", None, 0)),
        (world(status={"rolledBackRevision": "x", "message": "bad"}), ("new", "Progressing", None, 0)),
        (world(new=1, abort="new"), ("old", "RolledBack", None, 0)),
        # there is no way back to a revision that is gone, or to itself
        (world(new=1, abort="new", status={"lastGoodRevision": "gone"}), ("new", "Progressing", None, 0)),
        (world(new=1, abort="new", status={"lastGoodRevision": "new"}), ("new", "Progressing", None, 0)),
    ],
)
def test_verdicts_and_the_way_back(seen, answer):
    assert head(seen) == answer


def test_a_deadline_that_passed_rolls_back():
    late = {
        "type": "Stalled",
        "status": "True",
        "reason": "ProgressDeadlineExceeded",
        "message": "no progress for 1800 s",
        "lastTransitionTime": TIME,
        "observedGeneration": 1,
    }
    conditions = [{**late, "type": "Ready", "status": "False"}, late]
    found = rollout_target(
        world(new=1, ready=False, conditions=conditions, autoRollback=True), current="new", wanted=4, now=NOW
    )
    assert (found.revision, found.why) == ("old", "no progress for 1800 s")
    older = [{**one, "observedGeneration": 0} for one in conditions]
    assert head(world(new=1, ready=False, conditions=older, autoRollback=True))[0] == "new"


def test_a_verdict_keeps_its_first_numbers():
    before = {"phase": "Held", "message": "30.0 % failed"}
    found = rollout_target(world(new=1, served=BAD, analysis={}, status=before), current="new", wanted=4, now=NOW)
    assert (found.phase, found.why, found.holding) == ("Held", "30.0 % failed", True)


@pytest.mark.parametrize(
    ("rules", "new", "old", "words"),
    [
        (
            {},
            RevisionTraffic(requests=100, failed=6),
            RevisionTraffic(requests=100),
            "6.0 % of its 100 requests failed, 0.0 % before",
        ),
        ({}, RevisionTraffic(requests=100, failed=5), RevisionTraffic(requests=100), ""),
        ({}, RevisionTraffic(requests=100, failed=6), RevisionTraffic(requests=100, failed=9), ""),
        ({}, RevisionTraffic(requests=49, failed=49), RevisionTraffic(requests=100), ""),
        ({}, RevisionTraffic(requests=100, ttft_s=9.0), RevisionTraffic(requests=100, ttft_s=1.0), ""),
        (
            {"maxTtftRegressionPercent": 50},
            RevisionTraffic(requests=100, ttft_s=1.6),
            RevisionTraffic(requests=100, ttft_s=1.0),
            "its first token takes 1.60 s, 1.00 s before",
        ),
        (
            {"maxTtftRegressionPercent": 50},
            RevisionTraffic(requests=100, ttft_s=1.5),
            RevisionTraffic(requests=100, ttft_s=1.0),
            "",
        ),
        ({"maxTtftRegressionPercent": 50}, RevisionTraffic(requests=100, ttft_s=1.6), RevisionTraffic(), ""),
    ],
)
def test_judged(rules, new, old, words):
    said = judged(Analysis.model_validate(rules), new, old)
    assert said.startswith(words)
    assert bool(said) == bool(words)


def test_samples_add_up_over_the_pods_that_speak():
    pods = [
        Replica(name="a", reading=RuntimeState(served=ServedTotals(answered=3, failed=1, ttft_s=2.0, first_tokens=2))),
        Replica(name="b", reading=RuntimeState(served=ServedTotals(answered=1, ttft_s=4.0, first_tokens=1))),
        Replica(name="c"),
    ]
    assert of(pods, {}) == RevisionTraffic(requests=4, failed=1, ttft_s=2.0)


def with_old(seen, served):
    """The same where each replica of the old revision has served so much, and these replicas."""
    reading = RuntimeState(served=served)
    old = [structs.replace(r, uid=r.name, reading=reading) for r in seen.replicas if r.revision == "old"]
    return replace(seen, replicas=(*old, *(r for r in seen.replicas if r.revision == "new"))), old


def test_an_old_incident_does_not_hide_errors_of_the_new_revision():
    """The old revision lost half of its requests once; since the step began it has lost none."""
    incident = ServedTotals(answered=1_000, failed=500)
    seen, old = with_old(world(new=1, served=ServedTotals(answered=100, failed=30), analysis={}), incident)
    assert head(seen)[1] == "Progressing"
    since_the_step = {r.uid: ServedTotals(answered=900, failed=500) for r in old}
    assert head(replace(seen, served_before=since_the_step))[1] == "Held"


def test_an_old_revision_without_requests_since_the_step_still_says_how_fast_it_was():
    fast = ServedTotals(answered=100, ttft_s=10.0, first_tokens=100)
    slow = ServedTotals(answered=100, ttft_s=99.0, first_tokens=99)
    seen, old = with_old(world(new=1, served=slow, analysis={"maxTtftRegressionPercent": 50}), fast)
    assert head(replace(seen, served_before={r.uid: fast for r in old}))[1] == "Held"
