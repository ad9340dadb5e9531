"""Why a kubelet ended a pod for good or did not take it, and what keeps the next one. Called by `replica`."""

from typing import Final

from kvasir_kube.kinds import Json

MOST_WORDS: Final = 300
"""Of the kubelet, which lists what every container used."""
_CLAIM: Final = "keep the model in a claim (spec.model.cacheClaim)"
_OR_CLAIM: Final = f", or {_CLAIM}"
_ADVICE: Final = (
    ('EmptyDir volume "model"', f"the model is larger than its source said: {_CLAIM}"),
    ("EmptyDir volume", "raise the volume's sizeLimit, which podPatches of the AcceleratorClass set"),
    ("exceed", "raise the limit of ephemeral-storage, which a LimitRange or podPatches of the AcceleratorClass set"),
    ("resource: memory", "pods of this node use more memory than they request: raise their requests, or add nodes"),
    ("ephemeral-storage", f"free disk on the node{_OR_CLAIM}"),
    ("inodes", "free inodes on the node"),
    ("DiskPressure", f"free disk on the node{_OR_CLAIM}"),
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
    spec = pod.get("spec") or {}
    where = f" (node {spec['nodeName']})" if spec.get("nodeName") else ""
    advice = next((f"; {text}" for seen, text in _ADVICE if seen in words and status["reason"] == "Evicted"), "")
    if _is_in_claim(spec):
        advice = advice.removesuffix(_OR_CLAIM)
    return f"{status['reason']}: {words}{where}{advice}"


def _is_in_claim(spec: Json) -> bool:
    return any(one["name"] == "model" and "persistentVolumeClaim" in one for one in spec.get("volumes") or ())
