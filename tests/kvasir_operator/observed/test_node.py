"""Nodes that leave or may vanish, by their labels, taints and the administrator's cordon."""

import pytest

from kvasir_operator.observed.node import LEAVING_TAINTS, SPOT_LABELS, Node, node


def made(labels=None, **spec):
    return {"metadata": {"name": "n", "labels": labels or {}}, "spec": spec}


@pytest.mark.parametrize(
    ("obj", "want"),
    [
        ({}, Node()),
        (made(), Node()),
        (made(unschedulable=True), Node(leaving=True)),
        (made(taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]), Node()),
        (made({"karpenter.sh/capacity-type": "on-demand"}), Node()),
        *((made({name: value}), Node(spot=True)) for name, value in SPOT_LABELS.items()),
        *((made(taints=[{"key": key, "effect": "NoSchedule"}]), Node(leaving=True)) for key in sorted(LEAVING_TAINTS)),
    ],
)
def test_what_a_node_says(obj, want):
    assert node(obj) == want
