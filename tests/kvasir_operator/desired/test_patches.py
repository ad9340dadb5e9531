"""Patches of a class: what they may change, what they may not, and how a refusal names them."""

import copy
from typing import Any

import pytest

from fakes.manifests import service
from fakes.stages import pod_template, resolved
from kvasir_api import names
from kvasir_api.accelerator import PodPatch
from kvasir_operator.desired.patches import MAX_VALUE, patched
from kvasir_operator.observed.service import Observed, observed
from kvasir_operator.observed.settings import OperatorSettings

SETTINGS = OperatorSettings(runtime_image="gpu:1")
RUNTIME = "/spec/containers/0"
Patch = dict[str, Any]


def patch(op: str, path: str, value: Any = None) -> Patch:
    return {"op": op, "path": path, "value": value}


def seen(*patches: Patch, pod: Any = None, **spec: Any) -> Observed:
    body = service(resources={"accelerator": {"count": 1, "classes": ["h100"]}}, **spec)
    of_class = {"memory": "80Gi", "podPatches": list(patches), "pod": pod or {}}
    classes = [{"metadata": {"name": "h100"}, "spec": of_class}]
    return observed(body, revisions=(), deployments=(), replicas=(), svc=None, classes=classes)


def made(*patches: Patch, **spec: Any) -> Any:
    return pod_template(seen(*patches, **spec), "rev", SETTINGS)


def said(*patches: Patch) -> str:
    found = resolved(seen(*patches), SETTINGS).violation
    assert found is None or found.reason == "BadPatch"
    return found.message if found else ""


PLAIN = made()
SIDECAR = {"name": "exporter", "image": "dcgm:1", "ports": [{"name": "dcgm", "containerPort": 9400}]}


@pytest.mark.parametrize(
    ("op", "path", "value", "where", "want"),
    [
        ("add", "/spec/hostIPC", True, ("spec", "hostIPC"), True),
        ("add", "/metadata/annotations/a.b~1c", "d", ("metadata", "annotations"), {"a.b/c": "d"}),
        ("add", "/metadata/labels/team", "ml", ("metadata", "labels", "team"), "ml"),
        ("add", "/spec/tolerations/-", {"key": "gpu"}, ("spec", "tolerations"), [{"key": "gpu"}]),
        ("add", "/spec/nodeSelector/rack", "7", ("spec", "nodeSelector"), {"rack": "7"}),
        ("add", "/spec/initContainers/-", {"name": "warm"}, ("spec", "initContainers"), [{"name": "warm"}]),
        ("add", "/spec/affinity/nodeAffinity", {"a": 1}, ("spec", "affinity"), {"nodeAffinity": {"a": 1}}),
        ("add", "/spec/containers/-", SIDECAR, ("spec", "containers", 1), SIDECAR),
        ("add", "/spec/containers/0", SIDECAR, ("spec", "containers", 0), SIDECAR),
        ("add", f"{RUNTIME}/env/-", {"name": "A", "value": "b"}, ("spec", "containers", 0, "env", -1, "name"), "A"),
        ("replace", f"{RUNTIME}/image", "mine:2", ("spec", "containers", 0, "image"), "mine:2"),
        (
            "add",
            f"{RUNTIME}/securityContext/capabilities/add",
            ["IPC_LOCK"],
            ("spec", "containers", 0, "securityContext", "capabilities", "add"),
            ["IPC_LOCK"],
        ),
        (
            "replace",
            "/spec/volumes/1/emptyDir",
            {"medium": "Memory"},
            ("spec", "volumes", 1, "emptyDir"),
            {"medium": "Memory"},
        ),
        (
            "add",
            f"{RUNTIME}/resources/limits/rdma~1hca",
            "1",
            ("spec", "containers", 0, "resources", "limits", "rdma/hca"),
            "1",
        ),
        (
            "replace",
            f"{RUNTIME}/livenessProbe/failureThreshold",
            30,
            ("spec", "containers", 0, "livenessProbe", "failureThreshold"),
            30,
        ),
        ("replace", "/spec/terminationGracePeriodSeconds", 900, ("spec", "terminationGracePeriodSeconds"), 900),
        (
            "add",
            f"{RUNTIME}/ports/-",
            {"name": "debug", "containerPort": 9999},
            ("spec", "containers", 0, "ports", 2, "name"),
            "debug",
        ),
    ],
)
def test_a_patch_changes_what_it_names_and_nothing_else(op: str, path: str, value: Any, where: Any, want: Any) -> None:
    found = made(patch(op, path, value))
    at = found
    for step in where:
        at = at[step]
    assert at == want
    assert said(patch(op, path, value)) == ""
    top = where[:2]
    for part in ("metadata", "spec"):
        kept = {name: inner for name, inner in found[part].items() if (part, name) != top}
        assert kept == {name: inner for name, inner in PLAIN[part].items() if (part, name) != top}


@pytest.mark.parametrize(
    ("op", "path", "value", "why"),
    [
        ("replace", f"{RUNTIME}/name", "main", "there must be one container named runtime"),
        ("remove", "/spec/containers/0", None, "there must be one container named runtime"),
        ("replace", "/spec/containers", "x", "not the form of a pod template"),
        ("replace", f"{RUNTIME}/args", [], "args of container runtime is the operator's own"),
        ("add", f"{RUNTIME}/args/-", "--port=1", "args of container runtime is the operator's own"),
        ("add", f"{RUNTIME}/command", ["sh"], "command of container runtime is the operator's own"),
        ("add", f"{RUNTIME}/workingDir", "/", "workingDir of container runtime is the operator's own"),
        ("remove", f"{RUNTIME}/terminationMessagePolicy", None, "terminationMessagePolicy of container runtime"),
        ("replace", f"{RUNTIME}/ports/1/containerPort", 9001, "ops in ports of container runtime"),
        ("add", f"{RUNTIME}/ports/-", {"name": "http", "containerPort": 1}, "http in ports of container runtime"),
        ("add", f"{RUNTIME}/ports/-", {"name": "x", "containerPort": 8000}, "ports of container runtime have a number"),
        ("remove", f"{RUNTIME}/readinessProbe", None, "httpGet of readinessProbe of container runtime"),
        ("replace", f"{RUNTIME}/livenessProbe/httpGet/path", "/", "httpGet of livenessProbe of container runtime"),
        ("replace", f"{RUNTIME}/startupProbe/httpGet/port", 1, "httpGet of startupProbe of container runtime"),
        ("remove", f"{RUNTIME}/volumeMounts/0", None, "/models in volumeMounts of container runtime"),
        ("replace", f"{RUNTIME}/volumeMounts/0/readOnly", False, "/models in volumeMounts of container runtime"),
        ("replace", f"{RUNTIME}/env/0/value", "127.0.0.1", "variable KVASIR_LISTEN_ADDRESS of container"),
        ("add", f"{RUNTIME}/env/-", {"name": "KVASIR_SERVICE", "value": "x"}, "variable KVASIR_SERVICE of container"),
        ("replace", f"{RUNTIME}/resources/limits/nvidia.com~1gpu", "8", "resources.limits of nvidia.com/gpu are what"),
        (
            "replace",
            f"{RUNTIME}/resources/requests/cpu",
            "1m",
            "resources.requests of cpu are what the service requests",
        ),
        ("remove", f"{RUNTIME}/resources", None, "resources.requests of cpu are what the service requests"),
        ("replace", "/spec/volumes/0", {"name": "model", "emptyDir": {}}, "model in volumes is the operator's own"),
        ("remove", "/spec/volumes/1", None, "scratch in volumes is the operator's own"),
        ("add", "/spec/restartPolicy", "Never", "restartPolicy of a replica is Always"),
        ("replace", "/spec/terminationGracePeriodSeconds", 5, "must be at least 630, by the service's drain"),
        ("remove", "/spec/terminationGracePeriodSeconds", None, "must be at least 630"),
        ("remove", "/metadata/labels", None, "not the form of a pod template"),
        ("replace", "/metadata/labels/serving.kvasir.dev~1revision", "x", "label serving.kvasir.dev/revision is"),
        ("remove", "/metadata/labels/app.kubernetes.io~1part-of", None, "label app.kubernetes.io/part-of is"),
        ("add", "/metadata/labels/serving.kvasir.dev~1inspects", "x", "label serving.kvasir.dev/inspects is"),
        ("add", "/metadata/annotations/serving.kvasir.dev~1draining", "x", "annotation serving.kvasir.dev/draining is"),
        ("add", "/metadata/annotations/controller.kubernetes.io~1pod-deletion-cost", "1", "pod-deletion-cost is"),
        (
            "add",
            "/spec/containers/-",
            {"name": "x", "ports": [{"name": "ops", "containerPort": 1}]},
            "port ops is container runtime's own",
        ),
        (
            "add",
            "/spec/initContainers/-",
            {"name": "x", "ports": [{"containerPort": 8000}]},
            "port 8000 is container runtime's own",
        ),
        ("add", "/spec/nothing/here", 1, "it does not apply: "),
        ("remove", "/spec/hostIPC", None, "it does not apply: "),
        ("replace", "/spec/hostIPC", True, "it does not apply: "),
        ("add", "/spec/containers/9/env", [], "it does not apply: "),
        ("add", "/spec/containers/x/env", [], "it does not apply: "),
        ("add", f"{RUNTIME}/image/deeper", "x", "it does not apply: "),
        ("test", f"{RUNTIME}/image", "other:1", "the test fails"),
        ("test", "/spec/hostIPC", True, "the test fails"),
        ("add", "/spec/hostIPC", None, "it needs a value"),
        ("add", "/spec/priority", 0.5, "a number with a fraction"),
        ("add", "/spec/affinity/x", {"a": [{"b": 1.0}]}, "a number with a fraction"),
        ("add", "/metadata/annotations/a", "x" * MAX_VALUE, f"longer than {MAX_VALUE} characters"),
    ],
)
def test_what_the_operator_lives_by_is_refused_by_the_patchs_number(op: str, path: str, value: Any, why: str) -> None:
    fine = patch("add", "/spec/hostIPC", True) if "hostIPC" not in path else patch("add", "/spec/hostPID", True)
    message = said(fine, patch(op, path, value))
    assert message.startswith(f"spec.podPatches[1] of AcceleratorClass h100 ({op} {path}): ")
    assert why in message
    assert resolved(seen(fine, patch(op, path, value)), SETTINGS).revision is None


def test_claims_of_the_service_stay() -> None:
    spec = {"resourceClaims": [{"name": "gpu", "resourceClaimName": "one"}]}
    found = observed(service(resources=spec), revisions=(), deployments=(), replicas=(), svc=None)
    plain = pod_template(found, "rev", SETTINGS)
    for path in (f"{RUNTIME}/resources/claims", "/spec/resourceClaims"):
        assert "gpu" in patched(plain, [PodPatch(op="remove", path=path)]).trouble


def test_what_is_put_right_again_is_no_fault_and_the_first_that_breaks_is_named() -> None:
    gone = patch("remove", f"{RUNTIME}/readinessProbe")
    back = patch("add", f"{RUNTIME}/readinessProbe", PLAIN["spec"]["containers"][0]["readinessProbe"])
    assert said(gone, back) == ""
    harmless = patch("add", "/spec/hostIPC", True)
    assert said(harmless, gone, patch("add", f"{RUNTIME}/command", ["x"])).startswith("spec.podPatches[1] ")


def test_the_class_and_its_patches_stay_as_they_are() -> None:
    patches = [patch("add", "/spec/affinity/x", {"a": []}), patch("add", "/spec/affinity/x/a/-", 1)]
    before = copy.deepcopy(patches)
    assert made(*patches)["spec"]["affinity"] == {"x": {"a": [1]}}
    assert made(*patches)["spec"]["affinity"] == {"x": {"a": [1]}}
    assert patches == before


def revision(*patches: Patch, **spec: Any) -> str:
    return resolved(seen(*patches, **spec), SETTINGS).revision.id


NOTHING: list[list[Patch]] = [
    [patch("test", "/metadata/labels/app.kubernetes.io~1part-of", names.PART_OF)],
    [patch("add", f"{RUNTIME}/image", "gpu:1")],
    [patch("replace", "/spec/terminationGracePeriodSeconds", 630)],
]


@pytest.mark.parametrize("patches", NOTHING)
def test_patches_that_change_no_pod_make_no_revision(patches: list[Patch]) -> None:
    assert revision(*patches) == revision()
    effect = patch("add", "/spec/hostIPC", True)
    assert revision(effect, *patches) == revision(effect) != revision()


def test_every_change_of_the_pod_makes_a_revision() -> None:
    ids = [revision(patch("add", path, value)) for path, value in (("/spec/hostIPC", True), ("/spec/hostPID", True))]
    assert len({revision(), *ids, revision(patch("add", "/spec/hostIPC", False))}) == 4


def test_a_revision_keeps_the_patched_pod() -> None:
    kept = resolved(seen(patch("add", "/spec/hostIPC", True)), SETTINGS).revision
    assert kept.template["spec"]["hostIPC"] is True
    assert kept.template["metadata"]["labels"][names.LABEL_REVISION] == kept.id
    assert kept.inputs["acceleratorClass"]["podPatches"] == [{"op": "add", "path": "/spec/hostIPC", "value": True}]
