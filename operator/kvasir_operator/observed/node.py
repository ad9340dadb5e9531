"""What of a node matters to replicas: whether it is about to vanish, or may at any time, and what it is near to.

Called by the loop; knows the labels and taints by which clouds and autoscalers say so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from kvasir_kube.kinds import Json

SPOT_LABELS: Final = {
    "karpenter.sh/capacity-type": "spot",
    "eks.amazonaws.com/capacityType": "SPOT",
    "cloud.google.com/gke-spot": "true",
    "cloud.google.com/gke-preemptible": "true",
    "kubernetes.azure.com/scalesetpriority": "spot",
    "node.kubernetes.io/lifecycle": "spot",
}
"""Label and value of a node that can vanish at short notice."""
LEAVING_TAINTS: Final = frozenset(
    {
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
        "cloud.google.com/impending-node-termination",
        "aws-node-termination-handler/spot-itn",
        "node.kubernetes.io/out-of-service",
    }
)
"""Taints of a node that will not be there for long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLifetime:
    """leaving: it takes no pods any more, or is gone. spot: it can vanish at short notice. labels: its own."""

    leaving: bool = False
    spot: bool = False
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)


GONE: Final = NodeLifetime(leaving=True)


def node_lifetime(obj: Json) -> NodeLifetime:
    """A node object as decisions see it."""
    labels = (obj.get("metadata") or {}).get("labels") or {}
    spec = obj.get("spec") or {}
    taints = {str(taint.get("key", "")) for taint in spec.get("taints") or ()}
    return NodeLifetime(
        leaving=bool(spec.get("unschedulable")) or bool(taints & LEAVING_TAINTS),
        spot=any(labels.get(name) == value for name, value in SPOT_LABELS.items()),
        labels=labels,
    )
