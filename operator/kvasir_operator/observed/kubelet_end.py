"""Why a kubelet ended a pod for good or did not take it, and what keeps the next one. Called by `replica`."""

from typing import Final

from kvasir_kube.kinds import Json

MOST_WORDS: Final = 300
"""Of the kubelet, which lists what every container used."""
_CLAIM: Final = "keep the model in a claim (spec.model.cacheClaim)"
_ADVICE: Final = (
    ('EmptyDir volume "model"', f"the model is larger than its source said: {_CLAIM}"),
    ("EmptyDir volume", "raise the volume's sizeLimit, which podPatches of the AcceleratorClass set"),
    ("exceed", "raise the limit of ephemeral-storage, which a LimitRange or podPatches of the AcceleratorClass set"),
    ("resource: memory", "pods of this node use more memory than they request: raise their requests, or add nodes"),
    ("ephemeral-storage", f"free disk on the node, or {_CLAIM}"),
    ("inodes", "free inodes on the node"),
    ("DiskPressure", f"free disk on the node, or {_CLAIM}"),
    ("MemoryPressure", "free memory on the node, or add nodes"),
)
"""What to do by words of the kubelet about an eviction; the first that are there count."""


def kubelet_end(pod: Json) -> str:
    """The kubelet's reason and words, the node, and what to do about an eviction; empty where it did not end the pod.

    What the pod's containers ended with follows from it.
    """
    status = pod.get("status") or {}
    if status.get("phase") != "Failed" or not status.get("reason"):
        return ""
    words = str(status.get("message") or "no reason was reported").strip()[:MOST_WORDS]
    node = (pod.get("spec") or {}).get("nodeName")
    where = f" (node {node})" if node else ""
    advice = next((f"; {text}" for seen, text in _ADVICE if seen in words and status["reason"] == "Evicted"), "")
    return f"{status['reason']}: {words}{where}{advice}"
