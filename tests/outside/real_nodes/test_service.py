"""A service from manifests/base on a real node: kubelet, containerd, images of ours. `make test-kubelet` runs it.

Not collected by `make test`: it needs root, and several GB for images.
"""

import json
import shlex
import threading
from urllib import request

import pytest

from fakes.guides import ROOT, blocks
from kvasir_api import names
from kvasir_local import kubectl
from outside.real_nodes.nodes import operator_with
from outside.real_nodes.service import forwarded

pytestmark = pytest.mark.timeout(600)

STREAMS = 4
COMPLIANCE = ROOT / "docs" / "guides" / "compliance.md"


def ready(service, name):
    conditions = service.items("pods", f"--field-selector=metadata.name={name}")[0]["status"].get("conditions", ())
    return {"Ready": "True"}.items() <= {c["type"]: c["status"] for c in conditions}.items()


def test_a_service_streams_through_the_gateways_cluster_address(served):
    with served.client() as client:
        text, end = served.stream(client)
    assert text
    assert end == "length"


def test_operator_and_gateway_run_from_the_base_under_restricted_pod_security(real, served):
    namespace = json.loads(kubectl.run(real.kubectl, "get", "namespace", names.SYSTEM_NAMESPACE, "--output=json"))
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    system = [*real.kubectl, f"--namespace={names.SYSTEM_NAMESPACE}"]
    pods = json.loads(kubectl.run(system, "get", "pods", "--output=json"))["items"]
    running = [pod for pod in pods if pod["status"]["phase"] == "Running"]
    assert len(running) == 4
    assert all(pod["status"]["podIP"] != pod["status"]["hostIP"] for pod in running)


def test_the_operator_watches_as_the_user_of_its_image(real, served):
    """What ends a watch is the API server's word; an error of the operator's own comes back at each start."""
    words = (
        "logs",
        f"--namespace={names.SYSTEM_NAMESPACE}",
        "--tail=-1",
        "--selector=app.kubernetes.io/name=kvasir-operator",
    )
    said = kubectl.run(real.kubectl, *words)
    assert "leading as" in said
    assert "watches: they failed" not in said


def test_a_replica_has_a_numbered_user_and_a_root_that_it_cannot_write(served):
    found = served.python("import os; print(os.getuid(), os.getgid()); open('/opt/kvasir/x', 'w')")
    assert found.stdout.split() == ["65532", "65532"]
    assert "Read-only file system" in found.stderr


def test_a_replica_has_no_capabilities_and_a_system_call_filter(served):
    status = served.python("print(open('/proc/self/status').read())").stdout
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
    assert (fields["NoNewPrivs"].strip(), fields["Seccomp"].strip()) == ("1", "2")


def test_a_replica_runs_as_any_user(served):
    """OpenShift gives each namespace a user of its own."""
    (found,) = served.pods()
    spec = {**found["spec"], "nodeName": None}
    container = spec["containers"][0]
    for context in (spec.setdefault("securityContext", {}), container.setdefault("securityContext", {})):
        context.pop("runAsUser", None)
        context.pop("runAsGroup", None)
    spec["securityContext"] |= {"runAsUser": 1000650000, "runAsGroup": 0, "runAsNonRoot": True}
    labels = {"app": "any-user"}
    served.put({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "any-user", "labels": labels}, "spec": spec})
    try:
        served.until(lambda: ready(served, "any-user"), "the pod of any user is Ready")
    finally:
        served.kubectl("delete", "pod", "any-user", "--wait=false")


def test_logs_and_copies_come_from_a_replica(served, tmp_path):
    assert served.kubectl("logs", served.pod(), "--tail=5").strip()
    served.kubectl("cp", f"{served.pod()}:/etc/debian_version", str(tmp_path / "version"))
    assert (tmp_path / "version").read_text().strip()


@pytest.mark.parametrize(("port", "path"), [(names.PORT_HTTP, "/v1/models"), (names.PORT_OPS, "/livez")])
def test_kubectl_forwards_the_ports_of_a_replica(served, port, path):
    with forwarded(served.program, f"pod/{served.pod()}", port) as url, request.urlopen(url + path) as answer:
        assert answer.status == 200


@pytest.mark.parametrize(
    ("deployment", "port", "path"),
    [
        ("kvasir-gateway", names.PORT_GATEWAY, "/v1/models"),
        ("kvasir-gateway", names.PORT_GATEWAY_STATE, "/livez"),
        ("kvasir-operator", 8081, "/livez"),
    ],
)
def test_kubectl_forwards_the_ports_of_the_control_plane(real, deployment, port, path):
    program = [*real.kubectl, f"--namespace={names.SYSTEM_NAMESPACE}"]
    with forwarded(program, f"deploy/{deployment}", port) as url, request.urlopen(url + path) as answer:
        assert answer.status == 200


def test_a_replica_forgets_by_what_the_guide_has_typed_into_its_pod(served):
    """In a process node's pod `localhost` is another one's too, so that the tests of the guides cannot execute it."""
    (typed,) = [block.text for block in blocks(COMPLIANCE) if block.kind == "text"]
    assert "?tenant=NAME" in typed
    found = served.exec(*shlex.split(typed.replace("?tenant=NAME", "")))  # the service has no tenants
    assert json.loads(found.stdout or "null") == {"reset": True}, found.stderr


def test_memory_is_limited_by_the_kernel(served):
    limit = served.python(
        "from pathlib import Path as P\n"
        "found = [P('/sys/fs/cgroup/memory/memory.limit_in_bytes'), P('/sys/fs/cgroup/memory.max')]\n"
        "print(next(path for path in found if path.exists()).read_text())"
    )
    assert int(limit.stdout) == 1 << 30, limit.stderr


def test_a_replica_that_leaves_ends_its_streams_first(fresh):
    """preStop, grace and readiness by a kubelet: a pod is deleted under open streams, and every one ends whole."""
    fresh.apply(replicas=2)
    fresh.until_ready()
    ends, started = [], threading.Barrier(STREAMS + 1)

    def stream():
        with fresh.client() as client:
            fresh.stream(client, 1)
            started.wait(60)
            ends.append(fresh.stream(client, 400)[1])

    threads = [threading.Thread(target=stream) for _ in range(STREAMS)]
    for thread in threads:
        thread.start()
    started.wait(60)
    leaving = fresh.pods()[0]["metadata"]
    fresh.kubectl("delete", "pod", leaving["name"], "--wait=false")
    for thread in threads:
        thread.join(120)
    assert ends == ["length"] * STREAMS
    fresh.until(
        lambda: leaving["uid"] not in {pod["metadata"]["uid"] for pod in fresh.items("pods")}, "the pod is gone"
    )
    fresh.until_ready()


def test_a_frozen_engine_is_started_again(fresh):
    """A kubelet's readiness and liveness probes: the engine's process is stopped, not ended."""
    fresh.apply()
    fresh.until_ready()
    with fresh.engine_that_stops(fresh.pod()) as stop:
        stop()
    fresh.until(lambda: not fresh.container().get("ready"), "the replica is not ready")
    fresh.until(lambda: fresh.container().get("restartCount", 0) >= 1, "the replica was started again")
    fresh.until(lambda: fresh.container().get("ready"), "the replica is ready again")


def test_a_replica_without_the_memory_to_start_is_named_with_what_to_do(fresh):
    """The kernel's own kill, by the limit of the control group."""
    fresh.apply(resources={"cpu": "300m", "memory": "128Mi"})
    killed = fresh.until(lambda: fresh.conditions().get("Stalled"), "the service is stalled")
    assert killed["reason"] == "OutOfMemory", killed
    assert "128Mi" in killed["message"]
    assert "raise spec.resources.memory" in killed["message"]
    fresh.apply()
    fresh.until_ready()


def test_an_image_that_cannot_be_pulled_is_named_and_the_operators_next_one_taken(real, fresh):
    """There is no registry: an image that the node does not have stands for one that is not there."""
    with operator_with(real, fresh, "--runtime-image-cpu=kvasir-runtime-cpu:absent"):
        fresh.apply()

        def named():
            ready = fresh.conditions().get("Ready", {})
            return ready.get("reason") == "ImagePullFailed" and "kvasir-runtime-cpu:absent" in ready["message"]

        fresh.until(named, "a condition names the image")
    fresh.until_ready()
