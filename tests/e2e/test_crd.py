"""The definition on a real API server: defaults, refusals with their messages, kubectl's verbs."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from kvasir_api import names
from kvasir_local.control_plane import ControlPlane

CRD = Path(__file__).parents[2] / "crds" / "inferenceservices.yaml"
ESTABLISHED = f"crd/{names.PLURAL}.{names.GROUP}"
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
    done = found("apply", "--server-side", "--force-conflicts", "-f", str(CRD))
    assert done.returncode == 0, done.stderr
    deadline = time.monotonic() + 60
    # kubectl wait fails on a definition that has no condition yet.
    while (done := found("wait", "--for=condition=Established", ESTABLISHED, "--timeout=60s")).returncode:
        assert time.monotonic() < deadline, done.stderr
    return found


def test_a_service_of_three_lines_stays_one_of_three_lines(kubectl: Kubectl) -> None:
    """The operator applies defaults, and `kubectl explain` names them; kubectl scale alone needs a stored number."""
    assert kubectl.apply(MODEL).returncode == 0
    assert kubectl.json("infsvc", "tiny")["spec"] == {**MODEL, "replicas": 1}


def test_models_may_lie_where_replicas_fetch_them(kubectl: Kubectl) -> None:
    digest = "0" * 64
    for uri in (
        "hf://org/name@v1",
        "s3://bucket",
        f"s3://bucket/models/tiny/v=1/@sha256:{digest}",
        "gs://bucket/models/tiny.gguf",
        "oci://127.0.0.1:5000/org/name",
        f"oci://registry.example/org/name:v1@sha256:{digest}",
        f"https://host:8443/~me/a%20b.tar.gz#sha256={digest}",
        f"https://host/a.tar.zst#sha256={digest}",
    ):
        done = kubectl.apply({"model": {"uri": uri, "secretName": "keys", "cacheClaim": "models"}})
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"model": {"uri": "ftp://b/name"}}, 'spec.model.uri: Invalid value: "object": model.uri must be hf://'),
        ({"model": {"uri": "s3://b/a b"}}, "model.uri of form s3:// and gs:// needs s3://BUCKET/PREFIX"),
        ({"model": {"uri": "oci://host"}}, "model.uri of form oci:// needs oci://HOST/REPOSITORY:TAG"),
        ({"model": {"uri": "https://host/a.tar"}}, "and its checksum: https://HOST/PATH.tar.gz#sha256="),
        ({"model": {"uri": f"https://host/a.tar?key=x#sha256={'0' * 64}"}}, "without query or password"),
        ({"model": {"uri": f"https://me:secret@host/a.tar#sha256={'0' * 64}"}}, "without query or password"),
        ({"model": {"uri": "hf://name"}}, "model.uri of form hf:// needs hf://ORG/NAME"),
        ({"model": {"uri": "hf://org/name@../x"}}, "model.uri of form hf:// needs hf://ORG/NAME"),
        ({"model": {"uri": "pvc://a/b", "secretName": "hub"}}, "model.secretName is for models that replicas fetch"),
        ({"model": {"uri": "pvc://a/b", "cacheClaim": "c"}}, "model.cacheClaim is for models that replicas fetch"),
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
        ({**MODEL, "autoscaling": {"minReplicas": 5}}, "minReplicas must not exceed autoscaling.maxReplicas"),
        (
            {**MODEL, "resources": {"accelerator": {"minMemory": "80G"}}},
            "count must be above 0 where classes or minMemory",
        ),
        (
            {**MODEL, "resources": {"accelerator": {"classes": ["h100"]}}},
            "count must be above 0 where classes or minMemory",
        ),
        ({**MODEL, "rollout": {"strategy": "InPlace", "maxUnavailable": 0}}, "maxUnavailable must be above 0"),
        (
            {**MODEL, "rollout": {"strategy": "BlueGreen", "steps": [{"replicaPercent": 5}]}},
            "BlueGreen goes in one step",
        ),
        ({**MODEL, "rollout": {"promote": "a", "abort": "a"}}, "promote and rollout.abort name the same revision"),
        ({**MODEL, "pod": {"labels": {"a/b": "x"}}}, "spec.pod.labels"),
        ({**MODEL, "autoscaling": {"minReplicas": -1}}, "should be greater than or equal to 0"),
        (
            {**MODEL, "runtime": {"speculation": "sufix"}},
            "speculation must be off, auto, ngram, suffix, mtp, hf://ORG/NAME",
        ),
        ({**MODEL, "runtime": {"speculation": "/model/$(HOME)"}}, "speculation must be off, auto, ngram, suffix"),
        ({**MODEL, "runtime": {"maxBatchTokens": 8}}, "maxBatchTokens must be 0 or at least runtime.blockSize"),
        (
            {**MODEL, "runtime": {"pipelineParallelSize": 2}, "resources": {"accelerator": {"count": 2}}},
            "an accelerator or claims go with tensorParallelSize, not with stages, data ranks or nodes",
        ),
        ({**MODEL, "resources": {"accelerator": {"count": 9}}}, "should be less than or equal to 8"),
        (
            {**MODEL, "runtime": {"tensorParallelSize": 2, "nnodes": 2}, "resources": {"accelerator": {"count": 2}}},
            "an accelerator or claims go with tensorParallelSize",
        ),
        (
            {**MODEL, "runtime": {"tensorParallelSize": 4, "nnodes": 3}},
            "runtime.nnodes must divide tensorParallelSize, or be pipelineParallelSize",
        ),
        (
            {**MODEL, "runtime": {"tensorParallelSize": 2, "kvHostBytes": 1}},
            "kvHostBytes needs runtime.prefixCache and one rank",
        ),
        (
            {**MODEL, "runtime": {"dataParallelSize": 2, "kvHostBytes": 1}},
            "spec.runtime.kvHostBytes: Invalid value",
        ),
        (
            {**MODEL, "runtime": {"prefixCache": False, "kvHostBytes": 1}},
            "kvHostBytes needs runtime.prefixCache and one rank",
        ),
        (
            {**MODEL, "runtime": {"dataParallelSize": 2}, "resources": {"accelerator": {"count": 1}}},
            "an accelerator or claims go with tensorParallelSize",
        ),
        (
            {**MODEL, "runtime": {"dataParallelSize": 2, "tensorParallelSize": 2}},
            "spec.runtime.dataParallelSize: Invalid value",
        ),
        (
            {**MODEL, "runtime": {"dataParallelSize": 2, "speculation": "hf://org/small"}},
            "runtime.dataParallelSize goes with no other ranks, nodes or draft model",
        ),
        ({**MODEL, "runtime": {"dataParallelSize": 9}}, "should be less than or equal to 8"),
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
    assert "set autoscaling.mode to Advisory or External to scale by hand" in refused.stderr


def test_kubectl_explains_and_lists(kubectl: Kubectl) -> None:
    explained = kubectl("explain", "infsvc.spec.autoscaling.kvTargetPercent").stdout
    assert "Range: 10 to 95. Default: 85." in " ".join(explained.split())
    assert "Default: 16." in " ".join(kubectl("explain", "infsvc.spec.runtime").stdout.split())
    assert "Default: 600." in " ".join(kubectl("explain", "infsvc.spec.drain").stdout.split())
    assert kubectl.apply(MODEL).returncode == 0
    listed = kubectl("get", names.CATEGORY).stdout
    assert listed.split()[:7] == ["NAME", "MODEL", "READY", "REPLICAS", "DESIRED", "GPU", "REASON"]


def test_applying_twice_changes_nothing(kubectl: Kubectl) -> None:
    kubectl.apply(MODEL)
    before = kubectl.json("infsvc", "tiny")["metadata"]["resourceVersion"]
    kubectl.apply(MODEL)
    assert kubectl.json("infsvc", "tiny")["metadata"]["resourceVersion"] == before
