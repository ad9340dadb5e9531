"""Whose device is believed to be broken, what becomes of its pod, and that no service is stranded by it."""

import pytest

from fakes.manifests import pod, service, terminated
from kvasir_api import names
from kvasir_operator.observed.replica import Replica, replica
from kvasir_operator.observed.service import RevisionWorkload, observed
from kvasir_operator.rollout.quarantine import MAX_QUARANTINED, NO_ROOM_S, QUARANTINE_S, actions

NOW = 10_000.0
LASTING = "DeviceFault: Xid 79 (the GPU has fallen off the bus): CUDA error: unknown error"
OF_A_PROGRAM = "DeviceFault: Xid 31 (memory page fault): CUDA error: an illegal memory access was encountered"


def failed(name="a", **fields):
    return Replica(**{"name": name, "revision": "r", "phase": "failed", "node": "n", "device_fault": LASTING, **fields})


def held(name="h", **fields):
    return failed(**{"name": name, "quarantined_at": NOW - 60, **fields})


def other(phase, **fields):
    return Replica(**{"name": "z", "revision": "r", "phase": phase, "created": NOW, **fields})


def unplaced(seconds, **fields):
    return other("unschedulable", assigned=False, created=NOW - seconds, **fields)


def acts(*replicas, quarantined=(), wanted=1, failure=""):
    workload = {"metadata": {"name": "w", "uid": "w"}}
    seen = observed(service(), revisions=(), deployments=(), replicas=replicas, quarantined=quarantined, svc=None)
    object.__setattr__(seen, "workloads", (RevisionWorkload(revision="r", name="w", found=workload, failure=failure),))
    return [(action.verb, action.replica.name, action.why) for action in actions(seen, wanted=wanted, now=NOW)]


@pytest.mark.parametrize(
    ("replica", "blamed"),
    [
        (failed(), True),
        (failed(phase="loading"), True),  # it starts again, on the same device
        (failed(phase="ready"), False),
        (failed(phase="draining"), False),
        (failed(drained=True), False),
        (failed(terminating=True), False),
        (failed(device_fault=""), False),
        (failed(device_fault=OF_A_PROGRAM, restarts=1), False),
        (failed(device_fault=OF_A_PROGRAM, restarts=2), True),
        (failed(device_fault="", unhealthy=("GPU-1",)), True),
        (failed(quarantined_at=NOW - QUARANTINE_S + 1), False),
        (failed(quarantined_at=NOW - QUARANTINE_S), True),
    ],
)
def test_a_pod_is_quarantined_for_a_fault_that_lasts_or_came_again(replica, blamed):
    assert [verb for verb, *_ in acts(replica)] == (["quarantine"] if blamed else [])


def test_the_reason_names_node_and_fault():
    assert acts(failed()) == [("quarantine", "a", f"on node n: {LASTING}")]
    unhealthy = failed(device_fault="", unhealthy=("GPU-1", "GPU-2"))
    assert acts(unhealthy) == [("quarantine", "a", "on node n: the kubelet reports GPU-1, GPU-2 as unhealthy")]


def test_no_more_than_a_few_at_once():
    broken = [failed(name) for name in "abcd"]
    assert [name for _, name, _ in acts(*broken, wanted=4)] == ["a", "b"]
    assert [name for _, name, _ in acts(*broken, quarantined=[held()], wanted=4)] == ["a"]
    assert acts(*broken, quarantined=[held("g"), held("h")], wanted=4) == []
    assert MAX_QUARANTINED == 2


@pytest.mark.parametrize("seconds", [0.0, NO_ROOM_S])
def test_nothing_is_quarantined_while_another_finds_no_node(seconds):
    assert acts(failed(), unplaced(seconds), wanted=2) == []
    assert acts(failed(), failure="exceeded quota: gpus") == []


@pytest.mark.parametrize(
    ("pod", "others", "wanted", "verb", "why"),
    [
        (held(), [other("ready")], 1, "", ""),
        (held(), [other("loading")], 1, "", ""),
        (held(quarantined_at=NOW - QUARANTINE_S), [other("ready")], 1, "free", "its 1800 s are over"),
        (held(phase="ready"), [other("ready")], 1, "free", "its device computes again"),
        (held(phase="ready"), [other("loading")], 1, "return", "it is ready again before another replica"),
        (held(), [unplaced(NO_ROOM_S - 1)], 1, "", ""),
        (held(), [unplaced(NO_ROOM_S)], 1, "return", "there is no room for another replica"),
        (held(), [unplaced(NOW, revision="new")], 1, "", ""),
        (held(), [], 0, "free", "no replica is wanted"),
        (held(terminating=True, quarantined_at=0.0), [], 0, "", ""),
    ],
)
def test_it_comes_back_or_goes(pod, others, wanted, verb, why):
    assert acts(*others, quarantined=[pod], wanted=wanted) == ([(verb, "h", why)] if verb else [])


def test_it_comes_back_where_the_quota_allows_no_other():
    assert [verb for verb, *_ in acts(quarantined=[held()], failure="exceeded quota: gpus")] == ["return"]


@pytest.mark.parametrize(("code", "fault"), [(names.EXIT_DEVICE, LASTING), (1, ""), (137, "")])
def test_the_last_words_of_a_container_tell_of_its_device(code, fault):
    words = f'{{"message": "failed"}}\nkvasir: {LASTING}\n{{"message": "later"}}\n'
    seen = replica(pod("a", container={"restartCount": 1, "lastState": terminated(code, words)}), None)
    assert seen.device_fault == fault
    assert (seen.last_words == LASTING) is bool(fault)


def test_the_kubelets_word_on_a_device_is_heard():
    resources = [{"resourceID": "GPU-1", "health": "Unhealthy"}, {"resourceID": "GPU-2", "health": "Healthy"}]
    container = {"allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": resources}]}
    assert replica(pod("a", container=container), None).unhealthy == ("GPU-1",)
    assert replica(pod("a"), None).unhealthy == ()
