"""What `kvasir why` prints of a service and of a pod."""

from fakes.manifests import pod, service
from kvasir_api import names
from kvasir_operator.status import explanation

STATUS = {
    "desiredReplicas": 3,
    "readyReplicas": 2,
    "autoscaling": {
        "desiredReplicas": 3,
        "rawReplicas": 5,
        "limitedBy": "rate",
        "message": "3 replicas: spec.autoscaling.scaleUp limits how fast the count changes; KV cache requires 5",
        "decisions": [
            {
                "time": "2026-01-01T00:00:00Z",
                "from": 2,
                "to": 3,
                "signal": "kv",
                "reason": "KV cache needs 4.6 replicas",
            }
        ],
    },
}


def test_a_service_with_the_arithmetic_of_its_decisions():
    obj = service(autoscaling={"maxReplicas": 8}) | {"status": STATUS}
    assert list(explanation.of_service(obj)) == [
        "service default/tiny: 2 of 3 replicas ready",
        "  autoscaling: mode Active, 1 to 8 replicas",
        "  now: 3 replicas: spec.autoscaling.scaleUp limits how fast the count changes; KV cache requires 5",
        "  wanted 3, required 5, limited by rate",
        "  2026-01-01T00:00:00Z  2 → 3: KV cache needs 4.6 replicas",
    ]


def test_a_service_with_replicas_for_prompts():
    roles = {"prefill": 1, "message": "prompts that come and wait require 1"}
    told = list(explanation.of_service(service() | {"status": {**STATUS, "roles": roles}}))
    assert "  roles: 1 of them compute prompts for the others: prompts that come and wait require 1" in told
    ready = pod("p0", ready=True, annotations={names.ANNOTATION_SERVING_ROLE: names.SERVING_ROLE_PREFILL})
    assert list(explanation.of_pod(ready, []))[1] == "  it computes prompts for the other replicas"


def test_a_service_that_is_scaled_by_hand():
    assert "  spec.replicas is 1; there is no spec.autoscaling" in list(explanation.of_service(service()))


def test_a_pod_that_found_no_node():
    pending = pod("p0", ready=False)
    pending["status"]["conditions"] = [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/2 nodes: 2 Insufficient cpu",
        }
    ]
    pending["spec"]["containers"] = [{"name": "runtime", "resources": {"requests": {"cpu": "64"}}}]
    pending["spec"]["nodeSelector"] = {"gpu": "l4"}
    event = {"reason": "FailedScheduling", "note": "0/2 nodes", "metadata": {}, "eventTime": "2026-01-01T00:00:00Z"}
    told = list(explanation.of_pod(pending, [event]))
    assert told[0] == "pod default/p0: unschedulable"
    assert told[1] == "  no node was found: 0/2 nodes: 2 Insufficient cpu"
    assert told[-2:] == ["  it requests cpu 64, a node with gpu=l4", "  FailedScheduling: 0/2 nodes"]


def test_a_pod_that_takes_requests():
    assert "  it takes requests" in list(explanation.of_pod(pod("p0", ready=True), []))
