"""What a kubelet that ended a pod reports, with what to do."""

import pytest

from kvasir_operator.observed.kubelet_end import kubelet_end

LOW = "The node was low on resource: {}. Threshold quantity: 10Gi, available: 9Gi."
"""These are words of Kubernetes 1.34."""


def ended(message, reason="Evicted", **fields):
    return {"spec": {"nodeName": "n1"}, "status": {"phase": "Failed", "reason": reason, "message": message, **fields}}


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ('Usage of EmptyDir volume "model" exceeds the limit "4Gi". ', "the model is larger than its source said"),
        ('Usage of EmptyDir volume "scratch" exceeds the limit "1Gi". ', "raise the volume's sizeLimit"),
        ("Pod ephemeral local storage usage exceeds the total limit of containers 8Mi. ", "raise the limit of"),
        ('Container runtime exceeded its local ephemeral storage limit "8Mi". ', "raise the limit of ephemeral"),
        (LOW.format("ephemeral-storage"), "free disk on the node, or keep the model in a claim"),
        (LOW.format("inodes"), "free inodes on the node"),
        (LOW.format("memory"), "pods of this node use more memory than they request"),
        ("The node had condition: [DiskPressure]. ", "free disk on the node"),
        ("The node had condition: [MemoryPressure]. ", "free memory on the node"),
    ],
)
def test_an_eviction_is_named_with_its_node_and_what_to_do(message, advice):
    assert kubelet_end(ended(message)).startswith(f"Evicted: {message.strip()} (node n1); {advice}")


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        (ended("Pod was terminated in response to imminent node shutdown.", "Terminated"), "Terminated: Pod was"),
        (ended("", "OutOfcpu"), "OutOfcpu: no reason was reported (node n1)"),
        (ended("Words that no kubelet of today has."), "Evicted: Words that no kubelet of today has. (node n1)"),
        (ended("low", phase="Running"), ""),
        ({"status": {"phase": "Failed"}}, ""),
        ({}, ""),
    ],
)
def test_other_ends_are_named_as_the_kubelet_does(pod, want):
    assert kubelet_end(pod).startswith(want)
    assert bool(kubelet_end(pod)) == bool(want)
    assert ";" not in kubelet_end(pod)


def test_long_words_leave_room_for_what_to_do():
    found = kubelet_end(ended(LOW.format("ephemeral-storage") + " Container runtime was using 1Gi." * 50))
    assert len(found) < 400
    assert found.endswith("(spec.model.cacheClaim)")


@pytest.mark.parametrize("message", [LOW.format("ephemeral-storage"), "The node had condition: [DiskPressure]. "])
@pytest.mark.parametrize(
    ("volume", "advice"),
    [
        ({"name": "model", "persistentVolumeClaim": {"claimName": "models"}}, "; free disk on the node"),
        ({"name": "model", "emptyDir": {}}, "; free disk on the node, or keep the model in a claim"),
        ({"name": "scratch", "persistentVolumeClaim": {"claimName": "s"}}, "; free disk on the node, or keep the"),
    ],
)
def test_a_claim_is_no_advice_for_a_model_that_is_in_one(message, volume, advice):
    pod = ended(message)
    pod["spec"]["volumes"] = [volume]
    found = kubelet_end(pod)
    assert advice in found
    assert found.endswith(advice) == ("keep" not in advice)
