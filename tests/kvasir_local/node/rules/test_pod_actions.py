"""What a pod's worker does next, and what its status says: whole lives of containers, step by step."""

from dataclasses import replace

import pytest

from kvasir_local.node.rules import backoff, pod_actions, pod_record, status, transitions
from kvasir_local.node.rules.kinds import timestamp
from kvasir_local.node.rules.pod_actions import RemovePod, StartContainer, StopContainer
from kvasir_local.node.rules.pod_record import Failure, PodRecord, Running, Terminated, Waiting

POLICY = backoff.BackoffPolicy(base_s=10, limit_s=40, reset_s=600)
T0 = 1_000_000.0


def pod(*names: str, inits: tuple[str, ...] = (), policy: str = "Always", grace_s: int = 30, **spec: object) -> dict:
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "u", "generation": 1},
        "spec": {
            "restartPolicy": policy,
            "terminationGracePeriodSeconds": grace_s,
            "containers": [{"name": name, "image": "i"} for name in names or ("a",)],
            "initContainers": [{"name": name, "image": "i"} for name in inits],
            **spec,
        },
    }


def deleted(found: dict, at: float) -> dict:
    return {**found, "metadata": {**found["metadata"], "deletionTimestamp": timestamp(at)}}


def fresh(found: dict) -> PodRecord:
    return pod_record.fresh(found, ip="127.20.0.1", now=T0)


def started(known: PodRecord, name: str = "a", *, now: float = T0, ready: bool = True) -> PodRecord:
    item = known.containers[name]
    run = transitions.next_run(item)
    item = transitions.started(item, run=run, pod_uid="u", image="i", now=now)
    return known.with_container(replace(item, started=True, ready=ready))


def ended(known: PodRecord, name: str = "a", *, code: int, now: float) -> PodRecord:
    item = transitions.ended(known.containers[name], exit_code=code, message="", policy=POLICY, now=now)
    return known.with_container(item)


def decide(found: dict, known: PodRecord, now: float = T0, *, gone: bool = False) -> pod_actions.PodActions:
    return pod_actions.compute_pod_actions(found, known, gone=gone, now=now)


def test_containers_start_together():
    assert decide(pod("a", "b"), fresh(pod("a", "b"))).actions == (StartContainer("a"), StartContainer("b"))


def test_init_containers_run_one_after_another_and_before_the_others():
    found = pod("a", inits=("i1", "i2"))
    known = fresh(found)
    assert decide(found, known).actions == (StartContainer("i1"),)
    known = started(known, "i1")
    assert decide(found, known).actions == ()
    known = ended(known, "i1", code=0, now=T0 + 1)
    assert decide(found, known).actions == (StartContainer("i2"),)
    assert status.phase(found, known) == "Pending"
    known = ended(started(known, "i2"), "i2", code=0, now=T0 + 2)
    assert decide(found, known).actions == (StartContainer("a"),)


@pytest.mark.parametrize(
    ("policy", "code", "again"),
    [("Always", 0, True), ("Always", 1, True), ("OnFailure", 0, False), ("OnFailure", 1, True), ("Never", 1, False)],
)
def test_the_restart_policy_decides_whether_a_container_starts_again(policy: str, code: int, again: bool):
    found = pod(policy=policy)
    known = ended(started(fresh(found)), code=code, now=T0 + 5)
    decision = decide(found, known, T0 + 5)
    assert decision.actions == ((StartContainer("a"),) if again else ())
    assert decision.record.settled is not again


def test_a_failed_init_container_fails_a_pod_that_never_restarts():
    found = pod(inits=("i1",), policy="Never")
    known = decide(found, ended(started(fresh(found), "i1"), "i1", code=2, now=T0)).record
    assert known.settled
    assert status.phase(found, known) == "Failed"


def test_crashes_wait_longer_and_longer():
    known, now, waits = fresh(pod()), T0, []
    for _ in range(5):
        known = ended(started(known, now=now), code=1, now=now + 1)
        waits.append(known.containers["a"].not_before - (now + 1))
        now = known.containers["a"].not_before
    assert waits == [0, 10, 20, 40, 40]
    known = ended(started(known, now=now), code=1, now=now + 600)
    assert known.containers["a"].not_before == now + 600


def test_back_off_is_shown_and_ends_in_a_start():
    found = pod()
    known = ended(started(ended(started(fresh(found)), code=3, now=T0 + 1), now=T0 + 1), code=3, now=T0 + 2)
    decision = decide(found, known, T0 + 3)
    assert decision.actions == ()
    assert decision.wake_at == T0 + 12
    shown = status.pod_status(found, decision.record, host_ip="127.0.0.1", now=T0 + 3)
    container = shown["containerStatuses"][0]
    assert container["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert container["state"]["waiting"]["message"].startswith("back-off 10s restarting failed container=a")
    assert container["lastState"]["terminated"]["exitCode"] == 3
    assert shown["phase"] == "Running"
    known = started(decide(found, decision.record, T0 + 12).record, now=T0 + 12)
    assert known.containers["a"].restarts == 2
    assert decide(found, decision.record, T0 + 12).actions == (StartContainer("a"),)


def test_deletion_stops_what_runs_within_the_grace_and_then_removes():
    found = deleted(pod("a", "b"), T0 + 30)
    known = started(started(fresh(found), "a"), "b")
    assert decide(found, known).actions == (
        StopContainer(name="a", deadline=T0 + 30, why=""),
        StopContainer(name="b", deadline=T0 + 30, why=""),
    )
    known = ended(ended(known, "a", code=0, now=T0 + 1), "b", code=0, now=T0 + 2)
    decision = decide(found, known, T0 + 2)
    assert decision.actions == (RemovePod(),)
    assert status.phase(found, decision.record) == "Succeeded"


def test_a_pod_that_vanished_is_killed_soon():
    found = pod()
    assert decide(found, started(fresh(found)), gone=True).actions == (
        StopContainer(name="a", deadline=T0 + 1, why=""),
    )
    assert decide(found, fresh(found), gone=True).actions == (RemovePod(),)


def test_a_deleted_pod_starts_nothing():
    assert decide(deleted(pod(), T0 + 30), fresh(pod())).actions == (RemovePod(),)


def test_a_given_up_pod_fails_and_starts_nothing():
    found = pod()
    decision = decide(found, replace(fresh(found), failure=Failure("UnsupportedField", "spec.x")))
    shown = status.pod_status(found, decision.record, host_ip="127.0.0.1", now=T0)
    assert decision.actions == ()
    assert (shown["phase"], shown["reason"], shown["message"]) == ("Failed", "UnsupportedField", "spec.x")


def test_an_active_deadline_ends_the_pod():
    found = pod(activeDeadlineSeconds=60)
    known = started(fresh(found))
    assert decide(found, known, T0 + 59).wake_at == T0 + 60
    decision = decide(found, known, T0 + 60)
    assert [type(order) for order in decision.actions] == [StopContainer]
    assert decision.record.failure is not None
    assert decision.record.failure.reason == "DeadlineExceeded"


def test_a_changed_image_restarts_the_container():
    found = pod()
    known = started(fresh(found))
    changed = {**found, "spec": {**found["spec"], "containers": [{"name": "a", "image": "other"}]}}
    [order] = decide(changed, known).actions
    assert isinstance(order, StopContainer)
    assert "definition changed" in order.why


def test_an_unknown_image_waits_longer_and_says_so():
    known = fresh(pod()).containers["a"]
    first = transitions.waits_for_image(known, "no program", now=T0)
    second = transitions.waits_for_image(first, "no program", now=first.not_before)
    assert (first.state, first.not_before) == (Waiting("ErrImagePull", "no program"), T0 + 10)
    assert (second.state, second.not_before) == (Waiting("ImagePullBackOff", "no program"), T0 + 20)
    third = transitions.waits_for_image(second, "no program", now=second.not_before)
    assert third.not_before == T0 + 40


def test_after_a_restart_of_the_node_what_ran_counts_as_killed_and_starts_again():
    found = pod("a", "b", policy="OnFailure")
    known = ended(started(started(fresh(found), "a"), "b"), "b", code=0, now=T0 + 1)
    found["status"] = status.pod_status(found, known, host_ip="127.0.0.1", now=T0)
    again = pod_record.fresh(found, ip="127.20.0.1", now=T0 + 50)
    lost = again.containers["a"].state
    assert isinstance(lost, Terminated)
    assert (lost.exit_code, lost.reason, lost.finished_at) == (137, "ContainerStatusUnknown", T0 + 50)
    assert again.started_at == T0
    assert decide(found, again, T0 + 50).actions == (StartContainer("a"),)
    assert started(again, "a").containers["a"].restarts == 1


def test_after_a_restart_of_the_node_a_finished_pod_stays_finished():
    found = pod(policy="Never")
    known = decide(found, ended(started(fresh(found)), code=0, now=T0 + 1), T0 + 1).record
    found["status"] = status.pod_status(found, known, host_ip="127.0.0.1", now=T0)
    assert found["status"]["phase"] == "Succeeded"
    again = pod_record.fresh(found, ip="127.20.0.1", now=T0 + 50)
    assert decide(found, again, T0 + 50).actions == ()
    assert status.phase(found, again) == "Succeeded"


def test_ready_needs_every_container():
    found = pod("a", "b")
    known = started(started(fresh(found), "a"), "b", ready=False)
    shown = status.pod_status(found, known, host_ip="127.0.0.1", now=T0)
    ready = next(item for item in shown["conditions"] if item["type"] == "Ready")
    assert (ready["status"], ready["message"]) == ("False", "containers with unready status: [b]")
    shown = status.pod_status(found, started(known, "b"), host_ip="127.0.0.1", now=T0)
    assert [item["status"] for item in shown["conditions"]] == ["True"] * 4


def test_an_unchanged_state_gives_an_unchanged_status():
    found = pod()
    known = started(fresh(found))
    found["status"] = {"conditions": [{"type": "PodScheduled", "status": "True"}]}
    shown = status.pod_status(found, known, host_ip="127.0.0.1", now=T0)
    assert status.differs(found, shown)
    found["status"] = {
        **shown,
        "qosClass": "BestEffort",
        "conditions": [*found["status"]["conditions"], *shown["conditions"]],
    }
    later = status.pod_status(found, known, host_ip="127.0.0.1", now=T0 + 500)
    assert not status.differs(found, later)
    assert status.differs(
        found, status.pod_status(found, started(known, ready=False), host_ip="127.0.0.1", now=T0 + 500)
    )


def test_running_is_a_state_with_a_time():
    known = started(fresh(pod())).containers["a"]
    assert known.state == Running(T0)
    assert known.container_id == "u-a-0"
