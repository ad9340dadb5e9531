"""A node as a place for a replica that is yet to come."""

import pytest

from kvasir_operator.observed.candidate_node import candidate_node

READY = [{"type": "Ready", "status": "True"}]
GPU = {"containers": [{"resources": {"limits": {"memory": "1Gi", "nvidia.com/gpu": "2"}}}]}
DEVICE = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
TAINT = {"key": "team", "value": "a", "effect": "NoExecute"}


def node(*, labels=None, conditions=READY, allocatable=None, deleted=False, **spec):
    metadata = {"name": "n", "labels": labels or {}, **({"deletionTimestamp": "x"} if deleted else {})}
    return candidate_node(
        {"metadata": metadata, "spec": spec, "status": {"conditions": conditions, "allocatable": allocatable or {}}}
    )


@pytest.mark.parametrize(
    ("found", "pod", "takes"),
    [
        (node(), {}, True),
        (node(unschedulable=True), {}, False),
        (node(conditions=[{"type": "Ready", "status": "Unknown"}]), {}, False),
        (node(conditions=[]), {}, False),
        (node(deleted=True), {}, False),
        (node(labels={"a": "b"}), {"nodeSelector": {"a": "b"}}, True),
        (node(labels={"a": "c"}), {"nodeSelector": {"a": "b"}}, False),
        (node(taints=[TAINT]), {}, False),
        (node(taints=[{**TAINT, "effect": "PreferNoSchedule"}]), {}, True),
        (node(taints=[TAINT]), {"tolerations": [{"operator": "Exists"}]}, True),
        (node(taints=[TAINT]), {"tolerations": [{"key": "team", "value": "a"}]}, True),
        (node(taints=[TAINT]), {"tolerations": [{"key": "team", "value": "b"}]}, False),
        (node(taints=[TAINT]), {"tolerations": [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}]}, False),
        (node(allocatable={"nvidia.com/gpu": "2"}), GPU, True),
        (node(allocatable={"nvidia.com/gpu": "1"}), GPU, False),
        (node(allocatable={"nvidia.com/gpu": "many"}), GPU, False),
        (node(), GPU, False),
        (node(allocatable={"nvidia.com/gpu": "8"}, taints=[DEVICE]), GPU, True),
        (node(taints=[DEVICE]), {}, False),
    ],
)
def test_which_nodes_may_take_a_pod(found, pod, takes):
    assert found.takes(pod) is takes
