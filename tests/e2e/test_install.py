"""Manifests are rendered, applied and waited for; what does not come up is explained."""

import json
import time
import urllib.request

import pytest

from kvasir_api.names import SYSTEM_NAMESPACE
from kvasir_local import install, kubectl, stack
from kvasir_local.errors import StepFailedError
from kvasir_local.progress import SilentProgress

SERVE = ["python3", "-m", "http.server", "8000", "--bind", "$(POD_IP)"]
POD_IP = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}


def overlay(directory, namespace, **container):
    labels = {"app": "x"}
    url = {"name": "URL", "value": "http://127.0.0.1:8080"}
    containers = [{"name": "c", "image": "kvasir-local/process", "env": [POD_IP, url], **container}]
    spec = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
    }
    deployment = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}, "spec": spec}
    (directory / "deployment.yaml").write_text(json.dumps(deployment))
    (directory / "kustomization.yaml").write_text(
        json.dumps({"namespace": namespace, "resources": ["deployment.yaml"]})
    )
    return directory


def test_operator_and_gateway_run_from_our_manifests(installed):
    with urllib.request.urlopen(f"{stack.gateway_url(installed)}/v1/models", timeout=60) as answer:
        assert json.load(answer)["object"] == "list"
    pods = kubectl.run(installed.kubectl, "get", "pods", f"--namespace={SYSTEM_NAMESPACE}", "--output=name").split()
    assert sorted(name.rsplit("-", 2)[0] for name in pods) == ["pod/kvasir-gateway", "pod/kvasir-operator"]


def test_an_overlay_is_installed_and_waited_for(cluster_node, namespace, tmp_path):
    program = cluster_node.kubectl
    install.apply(
        program, overlay(tmp_path, namespace, command=SERVE), node_address="127.9.9.9", progress=SilentProgress()
    )
    install.await_workloads(program, progress=SilentProgress(), namespace=namespace, timeout_s=60)
    flags = (f"--namespace={namespace}", "--show-managed-fields", "--output=json")
    deployment = json.loads(kubectl.run(program, "get", "deployment", "x", *flags))
    assert deployment["status"]["availableReplicas"] == 1
    assert deployment["metadata"]["managedFields"][0]["manager"] == "kvasir-local"
    env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
    assert env[1]["value"] == "http://127.9.9.9:8080"


def test_a_workload_that_dies_is_explained_with_its_log(cluster_node, namespace, tmp_path):
    dies = ["sh", "-c", "echo I lack something; exit 3"]
    never = {"tcpSocket": {"port": 1}}
    manifests = overlay(tmp_path, namespace, command=dies, readinessProbe=never)
    install.apply(cluster_node.kubectl, manifests, node_address="127.0.0.1", progress=SilentProgress())
    waits = "--output=jsonpath={.items[*].status.containerStatuses[*].state.waiting.reason}"
    deadline = time.monotonic() + 60
    while kubectl.run(cluster_node.kubectl, "get", "pods", f"--namespace={namespace}", waits) != "CrashLoopBackOff":
        assert time.monotonic() < deadline, "the pod has not died twice"
        time.sleep(0.05)
    with pytest.raises(StepFailedError) as failure:
        install.await_workloads(cluster_node.kubectl, progress=SilentProgress(), namespace=namespace, timeout_s=0)
    text = str(failure.value)
    assert "not ready after 0 s: x, x-" in text
    assert "I lack something" in text
    assert "BackOff" in text


def test_an_overlay_that_cannot_be_rendered_is_said(cluster, tmp_path):
    with pytest.raises(StepFailedError, match=r"kubectl kustomize .* failed: .*kustomization"):
        install.apply(cluster.kubectl, tmp_path, node_address="127.0.0.1", progress=SilentProgress())
