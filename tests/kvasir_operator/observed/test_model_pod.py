"""A pod that looks at a model, as the API server shows it."""

import pytest

from kvasir_api import names
from kvasir_operator.observed.model_pod import model_pod

METADATA = {"name": "p", "uid": "u", "labels": {names.LABEL_COMPONENT: "inspect"}}
UNPLACED = {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available"}]}


def status(phase="Running", **state):
    return {"phase": phase, "containerStatuses": [{"name": "sidecar"}, {"name": "inspect", "state": state}]}


def ended(code, message="", reason="Error"):
    return status(
        "Failed" if code else "Succeeded", terminated={"exitCode": code, "message": message, "reason": reason}
    )


@pytest.mark.parametrize(
    ("found", "over", "said", "trouble"),
    [
        ({}, False, "", ""),
        ({"phase": "Pending", **UNPLACED}, False, "", "0/3 nodes are available"),
        (status("Pending", waiting={"reason": "ContainerCreating"}), False, "", "ContainerCreating"),
        (status("Pending", waiting={"reason": "ErrImagePull", "message": "x"}), False, "", "ErrImagePull: x"),
        (status(running={"startedAt": "2026-01-01T00:00:00Z"}), False, "", ""),
        (ended(0, '{"schema":1}\n'), True, '{"schema":1}', ""),
        (ended(0), True, "", ""),
        (ended(2, "Usage: kvasir\n\nError: no config.json\n"), True, "", "Error: no config.json"),
        (ended(137, reason="OOMKilled"), True, "", "OOMKilled"),
        ({"phase": "Failed", "message": "Pod was active too long"}, True, "", "Pod was active too long"),
    ],
)
def test_what_a_pod_has_to_say(found, over, said, trouble):
    pod = {"metadata": {**METADATA, "creationTimestamp": "1970-01-01T00:01:00Z"}, "status": found}
    seen = model_pod(pod)
    assert (seen.name, seen.uid, seen.created, seen.leaving) == ("p", "u", 60.0, False)
    assert (seen.ended, seen.said, seen.trouble) == (over, said, trouble)
    assert seen.unplaced is trouble.startswith("0/3 nodes")


def test_when_one_has_ended_is_known():
    found = status(terminated={"exitCode": 0, "finishedAt": "1970-01-01T00:01:00Z"})
    assert model_pod({"metadata": METADATA, "status": found}).ended_at == 60.0
    assert model_pod({"metadata": METADATA, "status": status(running={})}).ended_at is None


def test_one_that_leaves():
    assert model_pod({"metadata": {"deletionTimestamp": "1970-01-01T00:01:00Z"}}).leaving
