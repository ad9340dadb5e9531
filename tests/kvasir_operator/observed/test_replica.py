"""Pods as decisions see them."""

import pytest

from fakes.manifests import UNSCHEDULABLE, pod, terminated
from kvasir_api import names
from kvasir_api.state import RuntimeState
from kvasir_operator.observed.replica import DRAINED_COST, epoch, refusal_line, replica, with_reading

REFUSED = terminated(1, "loading\nkvasir: /models/x has no config.json\n")
CRASHED = terminated(139, "", reason="Error")


@pytest.mark.parametrize(
    ("obj", "reading", "phase"),
    [
        (pod("a"), None, "starting"),
        (pod("a"), RuntimeState(phase="starting"), "starting"),
        (pod("a"), RuntimeState(phase="loading"), "loading"),
        (pod("a"), RuntimeState(phase="ready"), "loading"),  # the engine says so, the probe has not yet asked
        (pod("a", ready=True), RuntimeState(phase="ready"), "ready"),
        (pod("a", ready=True), None, "ready"),
        (pod("a", ready=True), RuntimeState(phase="draining"), "draining"),
        (pod("a", ready=True, annotations={names.ANNOTATION_DRAIN: "2026-01-01T00:00:00Z"}), None, "draining"),
        (pod("a", ready=True, deleting=True), None, "draining"),
        (pod("a", conditions=[UNSCHEDULABLE], node="", phase="Pending"), None, "unschedulable"),
        (pod("a", phase="Failed"), None, "failed"),
        (pod("a", container={"state": {"waiting": {"reason": "CrashLoopBackOff"}}}), None, "failed"),
        (pod("a", container={"state": {"waiting": {"reason": "ImagePullBackOff"}}}), None, "failed"),
        (pod("a", container={"state": {"waiting": {"reason": "ContainerCreating"}}}), None, "starting"),
        (pod("a", container={"lastState": REFUSED, "restartCount": 1, "state": {"running": {}}}), None, "failed"),
        (pod("a", container={"lastState": CRASHED, "restartCount": 1, "state": {"running": {}}}), None, "starting"),
        (pod("a", container={"lastState": CRASHED, "restartCount": 2, "state": {"running": {}}}), None, "failed"),
        (pod("a", container={"lastState": CRASHED, "restartCount": 9}, ready=True), None, "ready"),
    ],
)
def test_phase_of_a_pod(obj, reading, phase):
    assert replica(obj, reading).phase == phase
    for before in (None, *(RuntimeState(phase=word) for word in ("starting", "ready", "draining"))):
        assert with_reading(replica(obj, before), obj, reading) == replica(obj, reading)


@pytest.mark.parametrize(
    ("ended", "line"),
    [
        (REFUSED["terminated"], "/models/x has no config.json"),
        (terminated(1, "Traceback\nValueError: x")["terminated"], ""),
        (terminated(2, "kvasir: x")["terminated"], ""),
        (terminated(1, "kvasir: first\nkvasir: last")["terminated"], "last"),
        ({}, ""),
    ],
)
def test_refusal_is_the_runtimes_own_line(ended, line):
    assert refusal_line(ended) == line


def test_a_ready_pod_is_not_refused_by_its_past():
    assert replica(pod("a", ready=True, container={"lastState": REFUSED}), None).refusal == ""


def test_marks_and_times_are_read_back():
    notes = {names.ANNOTATION_DRAIN: "1970-01-01T00:01:00Z", names.ANNOTATION_DELETION_COST: str(DRAINED_COST)}
    seen = replica(pod("a", ready=True, annotations=notes), None)
    assert (seen.drain_since, seen.drained, seen.ready_at) == (60.0, True, epoch("2026-01-01T00:00:10Z"))


def test_the_times_of_a_start_are_read_where_they_came_true():
    def since(kind, second, status="True"):
        return {"type": kind, "status": status, "lastTransitionTime": f"1970-01-01T00:00:{second}Z"}

    mounted = "PodReadyToStartContainers"
    conditions = [since("PodScheduled", 12), since(mounted, 14)]
    running = {"state": {"running": {"startedAt": "1970-01-01T00:00:16Z"}}}
    seen = replica(pod("a", conditions=conditions, container=running), None)
    assert (seen.scheduled_at, seen.mounted_at, seen.started_at) == (12.0, 14.0, 16.0)
    not_yet = replica(pod("a", conditions=[since("PodScheduled", 12), since(mounted, 14, "False")]), None)
    assert (not_yet.scheduled_at, not_yet.mounted_at, not_yet.started_at) == (12.0, None, None)


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ({"lastState": terminated(137, reason="OOMKilled")}, "exit code 137, OOMKilled"),
        ({"lastState": REFUSED}, "kvasir: /models/x has no config.json (exit code 1, Error)"),
        ({"state": {"waiting": {"reason": "CreateContainerError", "message": "x"}}}, "CreateContainerError: x"),
    ],
)
def test_last_words_say_why(container, words):
    assert replica(pod("a", container=container), None).last_words == words


@pytest.mark.parametrize(
    ("reason", "message", "words"),
    [
        ("ErrImagePull", "no such host", "no such host"),
        ("ImagePullBackOff", 'Back-off pulling image "gpu:1": ErrImagePull: no such host', "no such host"),
        ("ImagePullBackOff", 'Back-off pulling image "gpu:1"', "ImagePullBackOff"),
        ("ErrImageNeverPull", "", "ErrImageNeverPull"),
        ("InvalidImageName", "couldn't parse", "couldn't parse"),
    ],
)
@pytest.mark.parametrize("before", [{}, {"lastState": CRASHED, "restartCount": 1}])
def test_an_image_that_cannot_be_pulled_is_named_with_the_same_words_at_every_attempt(reason, message, words, before):
    waits = pod("a", container={"state": {"waiting": {"reason": reason, "message": message}}, **before})
    waits["spec"]["containers"][0]["image"] = "gpu:1"
    seen = replica(waits, None)
    assert seen.image_failure == f"image gpu:1 cannot be pulled: {words}"
    assert (seen.last_words, seen.phase) == (seen.image_failure, "failed")
    assert replica(pod("a", container={"lastState": CRASHED}), None).image_failure == ""


def test_ops_url_needs_an_address():
    urls = [replica(pod("a", ip=ip), None).ops_url for ip in ("", "10.1.2.3", "fd00::1")]
    assert urls == ["", "http://10.1.2.3:8001", "http://[fd00::1]:8001"]


def test_a_pod_that_the_kubelet_ended_is_none_of_its_workload_and_says_why():
    """What its container ended with follows from that. Its status stays until somebody deletes it."""
    died = {"state": {"terminated": {"exitCode": 137, "reason": "Error", "message": "torch: killed"}}}
    evicted = pod("a", phase="Failed", container=died)
    evicted["status"] |= {"reason": "Evicted", "message": "The node was low on resource: ephemeral-storage."}
    found = replica(evicted, None)
    assert (found.live, found.phase) == (False, "failed")
    assert found.last_words.startswith("Evicted: The node was low on resource: ephemeral-storage. (node node); free")
    assert found.ended_at == found.created + 10  # since it is not ready
    del evicted["status"]["conditions"]
    assert replica(evicted, None).ended_at == found.created
    assert replica(pod("a", container=died), None).ended_at is None
