"""The definition on a real API server: defaults, refusals with their messages, kubectl's verbs."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kvasir_api import names
from kvasir_local.control_plane import ControlPlane

CRD = Path(__file__).parents[2] / "crds" / "inferenceservices.yaml"
MODEL = {"model": {"uri": "pvc://claim/tiny"}}


class Kubectl:
    """The real kubectl against the test's cluster, in one namespace."""

    def __init__(self, command: list[str], namespace: str) -> None:
        self._command = [*command, "--namespace", namespace]

    def __call__(self, *arguments: str, document: object = None) -> subprocess.CompletedProcess[str]:
        text = json.dumps(document) if document is not None else None
        return subprocess.run([*self._command, *arguments], input=text, capture_output=True, text=True, check=False)

    def apply(self, spec: dict[str, Any], name: str = "tiny") -> subprocess.CompletedProcess[str]:
        service = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": name}, "spec": spec}
        return self("apply", "--server-side", "-f", "-", document=service)

    def json(self, *arguments: str) -> dict[str, Any]:
        found = self("get", *arguments, "-o", "json")
        assert found.returncode == 0, found.stderr
        document: dict[str, Any] = json.loads(found.stdout)
        return document


@pytest.fixture
def kubectl(cluster: ControlPlane, namespace: str) -> Kubectl:
    found = Kubectl(cluster.kubectl, namespace)
    for arguments in (
        ("apply", "--server-side", "--force-conflicts", "-f", str(CRD)),
        ("wait", "--for=condition=Established", f"crd/{names.PLURAL}.{names.GROUP}", "--timeout=20s"),
    ):
        done = found(*arguments)
        assert done.returncode == 0, done.stderr
    return found


def test_a_service_of_three_lines_is_filled_with_defaults(kubectl: Kubectl) -> None:
    assert kubectl.apply(MODEL).returncode == 0
    spec = kubectl.json("infsvc", "tiny")["spec"]
    assert spec["replicas"] == 1
    assert spec["runtime"]["blockSize"] == 16
    assert spec["drain"] == {"timeoutSeconds": 600}
    assert "autoscaling" not in spec


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"model": {"uri": "hf://org/name"}}, 'spec.model.uri: Invalid value: "object": model.uri must be pvc://'),
        ({"model": {"uri": "pvc://Claim/x"}}, "needs a claim name of lower-case letters"),
        ({"model": {"uri": "pvc://claim/../x"}}, "must not climb"),
        ({}, "spec.model: Required value"),
        (
            {**MODEL, "autoscaling": {"minReplicas": 5, "maxReplicas": 2}},
            "minReplicas must not exceed autoscaling.maxReplicas",
        ),
        (
            {**MODEL, "autoscaling": {"kvTargetPercent": 60}},
            "kvReleasePercent must be below autoscaling.kvTargetPercent",
        ),
        ({**MODEL, "autoscaling": {"minReplicas": 0}}, "should be greater than or equal to 1"),
        ({**MODEL, "runtime": {"maxBatchTokens": 8}}, "maxBatchTokens must be 0 or at least runtime.blockSize"),
        ({**MODEL, "runtime": {"blockSize": 17}}, "Unsupported value: 17"),
        ({**MODEL, "resources": {"memory": "lots"}}, "spec.resources.memory"),
        ({**MODEL, "replicas": -1}, "spec.replicas"),
    ],
)
def test_a_wrong_spec_is_refused_with_a_helpful_message(kubectl: Kubectl, spec: dict[str, Any], words: str) -> None:
    refused = kubectl.apply(spec)
    assert refused.returncode != 0
    assert words in refused.stderr


@pytest.mark.parametrize("name", ["9lives", "a." + "b" * 20, "n" * 53])
def test_a_name_that_cannot_name_pods_is_refused(kubectl: Kubectl, name: str) -> None:
    refused = kubectl.apply(MODEL, name)
    assert "must be a DNS label of at most 52 characters" in refused.stderr


def test_scale_works_by_hand_and_explains_itself_under_autoscaling(kubectl: Kubectl) -> None:
    assert kubectl.apply(MODEL).returncode == 0
    assert kubectl("scale", "infsvc/tiny", "--replicas=3").returncode == 0
    assert kubectl.json("infsvc", "tiny")["spec"]["replicas"] == 3
    assert kubectl.apply({**MODEL, "autoscaling": {}}, "auto").returncode == 0
    refused = kubectl("scale", "infsvc/auto", "--replicas=3")
    assert refused.returncode != 0
    assert "remove spec.autoscaling to scale by hand" in refused.stderr


def test_kubectl_explains_and_lists(kubectl: Kubectl) -> None:
    explained = kubectl("explain", "infsvc.spec.autoscaling.kvTargetPercent").stdout
    assert "Unit: percent. Range: 10 to 95. Default: 85." in " ".join(explained.split())
    assert kubectl.apply(MODEL).returncode == 0
    listed = kubectl("get", names.CATEGORY).stdout
    assert listed.split()[:7] == ["NAME", "MODEL", "READY", "REPLICAS", "DESIRED", "GPU", "REASON"]


def test_applying_twice_changes_nothing(kubectl: Kubectl) -> None:
    kubectl.apply(MODEL)
    before = kubectl.json("infsvc", "tiny")["metadata"]["resourceVersion"]
    kubectl.apply(MODEL)
    assert kubectl.json("infsvc", "tiny")["metadata"]["resourceVersion"] == before
