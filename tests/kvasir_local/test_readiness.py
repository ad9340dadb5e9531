"""When workloads count as up, and what is said while they are not."""

import pytest

from kvasir_local.readiness import readiness


def deployment(name="d", generation=1, **status):
    return {"metadata": {"name": name, "generation": generation}, "spec": {"replicas": 1}, "status": status}


UP = deployment(observedGeneration=1, updatedReplicas=1, availableReplicas=1)


@pytest.mark.parametrize(
    ("deployments", "ready"),
    [
        ([], False),
        ([UP], True),
        ([UP, deployment(observedGeneration=1)], False),
        ([deployment(generation=2, observedGeneration=1, updatedReplicas=1, availableReplicas=1)], False),
        ([deployment(observedGeneration=1, availableReplicas=1)], False),
    ],
)
def test_ready(deployments, ready):
    assert readiness(deployments, []).ready is ready


@pytest.mark.parametrize(
    ("status", "text"),
    [
        ({"phase": "Running"}, "d"),
        ({"containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}]}, "d"),
        (
            {
                "containerStatuses": [
                    {"name": "c", "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back"}}}
                ]
            },
            "d, p: c CrashLoopBackOff back",
        ),
        (
            {"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 2}}}]},
            "d, p: c ended with exit code 2",
        ),
        ({"initContainerStatuses": [{"name": "i", "state": {"terminated": {"exitCode": 0}}}]}, "d"),
        ({"phase": "Failed", "reason": "UnsupportedField", "message": "spec.x"}, "d, p: UnsupportedField: spec.x"),
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node"}
                ]
            },
            "d, p: Unschedulable: no node",
        ),
    ],
)
def test_what_a_pod_waits_for_is_said(status, text):
    found = readiness([deployment()], [{"metadata": {"name": "p"}, "status": status}])
    assert found.text == text
    assert found.failing == (("p",) if ":" in text else ())
