"""Conditions for each situation, and the rules of generic tools over every status that can be written."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

import kvasir_operator
from fakes.flux import breaches
from fakes.manifests import service
from fakes.situations import ELASTIC, LATER, NOW, TAKEN, again, findings, replica, situations
from kvasir_api import names
from kvasir_api.state import KvState, MeasuredRates, RuntimeState
from kvasir_api.status import AutoscalingStatus, InferenceServiceStatus
from kvasir_operator.observed.service import ForeignObject, Revision
from kvasir_operator.stages import RolloutTarget
from kvasir_operator.status.compose import compose, document, pace_s


def said(found):
    """Ready's reason and the types of all conditions that are True."""
    status, _ = compose(found)
    ready = next(c for c in status.conditions if c.type == "Ready")
    return ready.reason, {c.type for c in status.conditions if c.status == "True"}


def message(found, kind="Ready"):
    status, _ = compose(found)
    return next(c.message for c in status.conditions if c.type == kind)


READY = replica("ready")
LOADING = replica("loading")
FETCHING = replica("starting", reading=RuntimeState(downloaded_bytes=2**30, download_bytes=3 * 2**30))
RUNNING = replica("starting", started_at=5.0)
UNPULLED = replica("failed", name="bad", image_failure="image x:1 cannot be pulled: no such host")
FAILED = replica("failed", name="bad", last_words="exit code 137, OOMKilled")
UNPLACED = replica("unschedulable", name="big", last_words="0/1 nodes are available")
KEPT = Revision(id="old", number=1, inputs={}, template={})
REFUSED = replica("failed", name="bad", refusal="/models/x has no config.json")
TOO_SMALL = replica(
    "failed", name="bad", refusal="TooSmall: the weights (15 GiB) and a step (1 GiB) take 16 GiB; 4 GiB may be used"
)
UNUSABLE = {
    reason: replica("failed", name="bad", refusal=f"{reason}: what is wrong")
    for reason in ("NoDevice", "DriverTooOld", "OutOfDeviceMemory")
}
UNFETCHED = replica("failed", name="bad", refusal="ModelUnavailable: model s3://bucket/a is not given: no access")
OLD = replica("ready", revision="old", name="old")


@pytest.mark.parametrize(
    ("rules", "reason", "expected"),
    [
        (None, "", "spec.replicas is 0"),
        ({"mode": "Advisory"}, "2 replicas: the load", "spec.replicas is 0"),
        ({"mode": "External"}, "2 replicas: the load", "spec.replicas is 0"),
        # spec.replicas may be another number: the autoscaler had set the count before.
        ({"mode": "Paused"}, "2 replicas: the load", "spec.autoscaling.mode is Paused, and the count is 0"),
        ({"minReplicas": 0, "maxReplicas": 2}, "0 replicas: no request came", "0 replicas: no request came"),
        ({"minReplicas": 0, "maxReplicas": 2}, "", "0 replicas: by a decision of which no reason is known"),
    ],
)
def test_zero_replicas_say_what_sets_the_count(rules, reason, expected):
    told = AutoscalingStatus(desired_replicas=2, message=reason) if rules else None
    found = findings(wanted=0, autoscaling=told, obj=service(**({"autoscaling": rules} if rules else {})))
    assert (said(found)[0], message(found)) == ("ScaledToZero", expected)


@pytest.mark.parametrize(
    ("found", "reason", "true"),
    [
        (findings(READY), "AllReplicasReady", {"Ready"}),
        (findings(wanted=0), "ScaledToZero", {"Ready"}),
        (findings(), "MinimumNotAvailable", {"Reconciling"}),
        (findings(replica("loading")), "ModelLoading", {"Reconciling"}),
        (findings(FETCHING), "ModelDownloading", {"Reconciling"}),
        (findings(READY, wanted=2), "Scaling", {"Reconciling"}),
        (findings(READY, wanted=2, obj=service(**ELASTIC)), "MinimumAvailable", {"Ready"}),
        (findings(READY, OLD), "RollingOut", {"Ready", "Reconciling"}),
        (findings(READY, replica("draining", revision="old", name="old")), "AllReplicasReady", {"Ready"}),
        (findings(FAILED), "CrashLooping", {"Reconciling"}),
        (findings(UNPULLED), "ImagePullFailed", {"Reconciling"}),
        (findings(READY, UNPULLED, wanted=2), "Scaling", {"Reconciling", "Degraded"}),
        (findings(READY, FAILED, wanted=2), "Scaling", {"Reconciling", "Degraded"}),
        (findings(READY, FAILED, wanted=2, obj=service(**ELASTIC)), "MinimumAvailable", {"Ready", "Degraded"}),
        (findings(UNPLACED), "Unschedulable", {"Reconciling", "CapacityLimited"}),
        (findings(READY, UNPLACED, wanted=2, obj=service(**ELASTIC)), "MinimumAvailable", {"Ready", "CapacityLimited"}),
        (findings(REFUSED), "ModelLoadFailed", {"Stalled"}),
        (findings(TOO_SMALL), "TooSmall", {"Stalled"}),
        *((findings(one), reason, {"Stalled"}) for reason, one in UNUSABLE.items()),
        (findings(REFUSED, OLD), "ModelLoadFailed", {"Ready", "Stalled", "Degraded"}),
        (findings(REFUSED, READY, wanted=2), "Scaling", {"Reconciling", "Degraded"}),
        (findings(replica("loading"), overdue=True), "ProgressDeadlineExceeded", {"Stalled"}),
        (findings(READY, refused="no answer"), "Progressing", {"Reconciling"}),
        (findings(READY, refused="forbidden", refused_reason="Forbidden"), "Forbidden", {"Stalled"}),
        (findings(READY, missing=("pod",)), "AllReplicasReady", {"Ready", "MetricsStale"}),
        (findings(foreign=(ForeignObject("Service/tiny"),)), "NameConflict", {"Stalled"}),
        (findings(foreign=(ForeignObject("Service/tiny", leaves=True),)), "Progressing", {"Reconciling"}),
        (
            findings(READY, OLD, rollout=RolloutTarget(revision="new", phase="Canary")),
            "RollingOut",
            {"Ready", "Reconciling"},
        ),
        (
            findings(READY, OLD, rollout=RolloutTarget(revision="new", phase="Held")),
            "RolloutHeld",
            {"Ready", "Reconciling"},
        ),
        (
            findings(READY, OLD, rollout=RolloutTarget(revision="new", phase="Paused")),
            "RolloutPaused",
            {"Ready", "Reconciling"},
        ),
        (
            findings(
                OLD,
                current="old",
                asked="new",
                rollout=RolloutTarget(revision="old", phase="RolledBack", rolled_back="new"),
            ),
            "RolledBack",
            {"Ready", "Stalled"},
        ),
        (
            findings(OLD, current="", fault_reason="InvalidSpec", fault_message="spec.x"),
            "InvalidSpec",
            {"Ready", "Stalled"},
        ),
        # clients reach it as NAMESPACE/NAME
        (findings(READY, name_conflicts=TAKEN), "AllReplicasReady", {"Ready", "NameConflict"}),
        # a rollout in which no replica serves
        (findings(LOADING, replica("loading", revision="old", name="old")), "RollingOut", {"Reconciling"}),
    ],
)
def test_what_is_said_in_each_situation(found, reason, true):
    assert said(found) == (reason, true)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (findings(READY, OLD, wanted=2), "1 of 2 replicas ready in revision new, 1 still of an older one"),
        (findings(REFUSED), "/models/x has no config.json"),
        (
            findings(OLD, current="old", rollout=RolloutTarget(revision="old", rolled_back="new", why="too slow")),
            "revision new was rolled back to old: too slow",
        ),
        (
            findings(READY, OLD, wanted=2, rollout=RolloutTarget(revision="new", phase="Canary", why="step 1 of 2")),
            "1 of 2 replicas ready in revision new; step 1 of 2",
        ),
        (findings(UNPLACED), "0 of 1 replica ready; big: 0/1 nodes are available"),
        (findings(FAILED), "0 of 1 replica ready; bad fails: exit code 137, OOMKilled"),
        (findings(LOADING), "0 of 1 replica ready; pod loads the model"),
        # too busy with it to answer the operator
        (findings(RUNNING), "0 of 1 replica ready; pod loads the model"),
        (findings(replica("starting")), "0 of 1 replica ready; pod waits for its container"),
        (findings(FETCHING), "0 of 1 replica ready; pod downloads the model, 33 % of 3.00 GiB"),
        (findings(), "0 of 1 replica ready"),
        (findings(READY, replica("loading", name="b"), wanted=2), "1 of 2 replicas ready; b loads the model"),
        (
            findings(READY, replica("loading", name="b"), wanted=2, obj=service(**ELASTIC)),
            "1 of 2 replicas ready; b loads the model",
        ),
        (
            findings(LOADING, OLD),
            "0 of 1 replica ready in revision new, 1 still of an older one; pod loads the model",
        ),
        (
            findings(replica("loading"), overdue=True),
            "no progress for 1800 s (spec.rollout.progressDeadlineSeconds): 0 of 1 replica ready; pod loads the model",
        ),
        (findings(UNFETCHED), "spec.model.uri: model s3://bucket/a is not given: no access"),
    ],
)
def test_messages_say_what_and_how_many(found, text):
    assert message(found) == text


def test_ready_stays_true_from_the_first_old_replica_to_the_last_new_one():
    """In place with two replicas: the old ones leave one by one, and in between one serves alone."""
    done = findings(OLD, replica("ready", revision="old", name="old-2"), current="old", asked="old", wanted=2)
    leaves = {"revision": "old", "name": "old"}
    steps = [
        (replica("draining", **leaves), replica("ready", revision="old", name="old-2"), LOADING),
        (READY, replica("draining", revision="old", name="old-2")),
        (READY, replica("loading", name="b")),
        (READY, replica("ready", name="b")),
    ]
    told, found = [], done
    for replicas in steps:
        found = again(found, *replicas, asked="new", wanted=2)
        seen = replace(found.seen, revisions=(KEPT,))
        found = replace(found, resolved=replace(found.resolved, observed=seen))
        ready = compose(found)[0].conditions[0]
        told.append((ready.status, ready.reason, ready.last_transition_time))
    assert told == [
        ("True", "RollingOut", NOW),
        ("True", "Scaling", NOW),
        ("True", "Scaling", NOW),
        ("True", "AllReplicasReady", NOW),
    ]
    lost = compose(again(found, READY, asked="new", wanted=2))[0].conditions[0]
    assert (lost.status, lost.reason) == ("False", "Scaling"), "the rollout is over"


def test_transition_time_moves_with_the_status_alone():
    loading = findings(replica("loading"))
    starting = again(loading, replica("starting"))
    ready = again(loading, READY)
    times = [compose(f)[0].conditions[0].last_transition_time for f in (loading, starting, ready)]
    assert times == [NOW, NOW, LATER]


def test_counters_may_wait_and_conditions_may_not():
    base = document(compose(findings(READY, wanted=1))[0])
    speaking = replica(
        "ready", reading=RuntimeState(kv=KvState(capacity_tokens=100), rates=MeasuredRates(prefill_tokens_per_s=1234.0))
    )
    faster = document(compose(findings(speaking))[0])
    worse = document(compose(findings(replica("loading")))[0])
    assert (pace_s(base, faster), pace_s(base, worse)) == (5.0, 0.0)
    told = {name: value for name, value in faster["capacity"].items() if value}
    assert told == {"kvTokens": 100, "prefillTokensPerSecond": 1200}


@pytest.mark.parametrize(
    ("desired", "raw", "before", "said"),
    [(4, 5, False, True), (4, 4, False, False), (4, 4, True, True), (4, 3, True, False), (3, 5, True, False)],
)
def test_a_maximum_that_holds_is_said_until_less_would_do(desired, raw, before, said):
    at_max = {"autoscaling": AutoscalingStatus(desired_replicas=4, raw_replicas=9)}
    first = findings(READY, obj=service(generation=3, **ELASTIC), **(at_max if before else {}))
    obj = service(generation=3, **ELASTIC) | {"status": document(compose(first)[0])}
    now = AutoscalingStatus(desired_replicas=desired, raw_replicas=raw)
    status, _ = compose(findings(READY, obj=obj, autoscaling=now))
    assert ("ScalingAtMax" in {c.type for c in status.conditions}) is said
    assert status.conditions[0].status == "True", "it serves all the same"


@pytest.mark.parametrize(
    ("before", "after", "seconds"),
    [
        # one more pod of many is ready: its number, and the words about it
        (findings(READY, wanted=4), findings(READY, replica("ready", name="b"), wanted=4), 2.0),
        (findings(READY, OLD, wanted=4), findings(READY, replica("loading", name="b"), OLD, wanted=4), 2.0),
        (findings(READY, wanted=2), findings(READY, replica("ready", name="b"), wanted=2), 0.0),
        (findings(READY, wanted=3), findings(READY, wanted=4), 0.0),
        (findings(READY, wanted=4), findings(READY, FAILED, wanted=4), 0.0),
        # what stalls says what to do
        (findings(REFUSED), findings(TOO_SMALL), 0.0),
        (findings(REFUSED), findings(replica("failed", name="bad", refusal="no tokenizer")), 0.0),
        (
            findings(
                READY, OLD, wanted=2, rollout=RolloutTarget(revision="new", phase="Progressing", strategy="Surge")
            ),
            findings(
                READY, OLD, wanted=2, rollout=RolloutTarget(revision="new", phase="Progressing", strategy="InPlace")
            ),
            0.0,
        ),
    ],
)
def test_what_moves_with_every_pod_may_wait_a_little(before, after, seconds):
    assert pace_s(document(compose(before)[0]), document(compose(after)[0])) == seconds


def test_capacity_is_kept_without_readings():
    reading = RuntimeState(kv=KvState(capacity_tokens=100), device="cpu", kernels="reference")
    first = findings(replica("ready", reading=reading))
    status, _ = compose(again(first, replica("loading")))
    assert (status.capacity.kv_tokens, status.capacity.device) == (100, "cpu, reference")


def test_address_is_the_gateways():
    status, _ = compose(findings(READY, gateway_url="http://127.0.0.1:8080/"))
    assert status.address.url == "http://127.0.0.1:8080/v1"


def test_every_reason_is_in_the_public_list():
    phases = ["starting", "loading", "ready", "draining", "failed", "unschedulable"]
    seen = {
        said(findings(replica(p), overdue=o, wanted=w))[0] for p in phases for o in (True, False) for w in (0, 1, 2)
    }
    assert seen <= set(names.REASONS)


def test_status_tells_where_the_rollout_stands():
    head = RolloutTarget(revision="new", phase="Canary", step=2, since=1.0, why="waits")
    first = findings(READY, OLD, asked="new", rollout=head)
    rollout = compose(first)[0].rollout
    assert (rollout.phase, rollout.step, rollout.step_since, rollout.message) == ("Canary", 2, NOW, "waits")
    later = compose(again(first, READY, OLD, asked="new", rollout=head))[0].rollout
    assert later.step_since == NOW
    next_step = replace(head, step=3)
    assert compose(again(first, READY, OLD, asked="new", rollout=next_step))[0].rollout.step_since == LATER


@given(situations())
def test_every_status_keeps_the_rules_of_generic_tools(found):
    status, _ = compose(found)
    assert breaches({"metadata": {"generation": found.seen.generation}, "status": document(status)}) == []
    assert status.observed_generation == found.seen.generation
    assert InferenceServiceStatus.model_validate(document(status)) == status


@pytest.mark.parametrize(
    ("change", "breach"),
    [
        ({"type": "Stalled"}, "Reconciling beside Stalled"),
        ({"type": "Ready"}, "Ready without a replica that serves"),
        ({"type": "Degraded", "status": "False"}, "Degraded is there though it is not True"),
        ({"type": "Degraded", "reason": "Unheard"}, "Degraded has a reason that is not published"),
        ({"type": "Degraded", "observedGeneration": 4}, "Degraded is of a generation that is yet to come"),
        ({"type": "Degraded", "message": ""}, "Degraded has no words"),
    ],
)
def test_a_status_that_no_tool_could_rely_on_is_found(change, breach):
    status = document(compose(findings(replica("loading")))[0])
    one = {**status["conditions"][1], "status": "True", **change}
    said = breaches({"metadata": {"generation": 3}, "status": {**status, "conditions": [*status["conditions"], one]}})
    assert breach in said
    assert breaches({"metadata": {"generation": 3}, "status": {**status, "observedGeneration": 4}})
    assert breaches({"status": {**status, "conditions": status["conditions"][1:]}}) == ["Ready is missing"]


@given(situations(), situations())
def test_a_transition_time_moves_with_its_status_alone_whatever_happens(first, second):
    before = {c.type: c for c in compose(first)[0].conditions}
    seen = replace(second.seen, status=compose(first)[0])
    later = replace(second, resolved=replace(second.resolved, observed=seen), now=LATER)
    for condition in compose(later)[0].conditions:
        known = before.get(condition.type)
        kept = known is not None and known.status == condition.status
        assert condition.last_transition_time == (known.last_transition_time if kept else LATER)


def slow(name, why="no compiler"):
    return replica("ready", name=name, reading=RuntimeState(device="cpu", kernels="cpu", fallback=why))


@pytest.mark.parametrize(
    ("found", "reason", "text"),
    [
        (
            findings(slow("a"), replica("ready", name="b", reading=RuntimeState()), wanted=2),
            "SlowerKernels",
            "1 of 2 ready replicas compute with slower kernels (cpu), as no compiler",
        ),
        (
            findings(slow("a"), FAILED, wanted=2, obj=service(**ELASTIC)),
            "ReplicasFailing",
            "bad: exit code 137, OOMKilled; 1 of 1 ready replicas compute with slower kernels (cpu), as no compiler",
        ),
    ],
)
def test_slower_kernels_are_no_secret(found, reason, text):
    status, _ = compose(found)
    degraded = next(c for c in status.conditions if c.type == "Degraded")
    assert (degraded.reason, degraded.message) == (reason, text)
    assert status.capacity.device.endswith("cpu, cpu (no compiler)")


def test_every_published_reason_is_given_in_the_code():
    """The other direction, every given reason is published, is a property above."""
    rooms = [Path(kvasir_operator.__path__[0]) / room for room in ("status", "desired")]
    code = "".join(path.read_text() for room in rooms for path in room.glob("*.py"))
    given_ = {reason for reason in names.REASONS if f'"{reason}"' in code}
    assert "names.REFUSALS" in code
    assert given_ | set(names.REFUSALS.values()) == set(names.REASONS)


@pytest.mark.parametrize("broken", ["InvalidSpec", ""], ids=["spec", "waiting"])
def test_a_rollback_is_remembered_while_nothing_can_be_planned(broken):
    """Else the revision that was given up would be rolled out again, or a canary would begin from its first step."""
    since = "2026-01-01T00:00:00Z"
    gone = RolloutTarget(revision="old", phase="RolledBack", rolled_back="new", why="too slow")
    first = findings(OLD, current="old", asked="new", rollout=gone)
    without_plan = {"current": "", "fault_reason": broken, "waiting": "" if broken else "pod reads the model"}
    rollout = compose(again(first, OLD, **without_plan))[0].rollout
    assert (rollout.rolled_back_revision, rollout.phase, rollout.message) == ("new", "RolledBack", "too slow")
    step = RolloutTarget(revision="new", phase="Canary", step=2, since=0.0)
    second = compose(again(findings(READY, OLD, asked="new", rollout=step, now=since), READY, OLD, **without_plan))[0]
    assert (second.rollout.phase, second.rollout.step, second.rollout.step_since) == ("Canary", 2, since)
