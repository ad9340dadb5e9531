"""Nodes that leave or may vanish, by their labels, taints and the administrator's cordon."""

import pytest

from kvasir_operator.observed.node import LEAVING_TAINTS, SPOT_LABELS, NodeLifetime, node_lifetime


def made(labels=None, **spec):
    return {"metadata": {"name": "n", "labels": labels or {}}, "spec": spec}


@pytest.mark.parametrize(
    ("obj", "want"),
    [
        ({}, NodeLifetime()),
        (made(), NodeLifetime()),
        (made(unschedulable=True), NodeLifetime(leaving=True)),
        (made(taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]), NodeLifetime()),
        (made({"karpenter.sh/capacity-type": "on-demand"}), NodeLifetime()),
        *((made({name: value}), NodeLifetime(spot=True)) for name, value in SPOT_LABELS.items()),
        *(
            (made(taints=[{"key": key, "effect": "NoSchedule"}]), NodeLifetime(leaving=True))
            for key in sorted(LEAVING_TAINTS)
        ),
    ],
)
def test_what_a_node_says(obj, want):
    assert node_lifetime(obj) == want
