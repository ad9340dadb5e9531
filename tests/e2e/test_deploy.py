"""`make deploy` names the images that `make images` tags, in the pods and in what the operator starts."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir_local import kubectl
from kvasir_local.control_plane import ControlPlane

OVERLAY = Path(__file__).parents[2] / "manifests" / "overlay.sh"


@pytest.mark.parametrize(
    ("registry", "envoy"), [("", "envoyproxy/envoy"), ("registry.example/team/", "registry.example/copies/envoy")]
)
def test_rendered_manifests_name_the_tagged_images(
    cluster: ControlPlane, tmp_path: Path, registry: str, envoy: str
) -> None:
    environment = {**os.environ, **({"ENVOY_REPOSITORY": envoy} if registry else {})}
    subprocess.run([OVERLAY, tmp_path / "deploy", registry, "1.2.3"], check=True, env=environment)
    rendered = subprocess.run(
        [*cluster.kubectl, "kustomize", tmp_path / "deploy"], check=True, capture_output=True, text=True
    ).stdout
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(rendered))
    text = json.dumps([item for item in documents if item["kind"] == "Deployment"])
    for name in ("operator", "gateway"):
        assert f'"image": "{registry}kvasir-{name}:1.2.3"' in text
    assert f'"image": "{envoy}:v' in text
    operator = next(
        item for item in documents if item["kind"] == "Deployment" and "operator" in item["metadata"]["name"]
    )
    arguments = operator["spec"]["template"]["spec"]["containers"][0]["args"]
    last = {argument.split("=")[0]: argument.split("=")[1] for argument in arguments}
    assert last["--runtime-image"] == f"{registry}kvasir-runtime:1.2.3"
    assert last["--runtime-image-cpu"] == f"{registry}kvasir-runtime-cpu:1.2.3"


@pytest.mark.parametrize(
    ("role", "may", "may_not"),
    [
        ("view", ("get infsvc", "list modelroutes", "watch tenants"), ("create infsvc", "patch infsvc/scale")),
        ("edit", ("get infsvc", "create infsvc", "delete modelroutes", "patch infsvc/scale"), ("create tenants",)),
        ("admin", ("create infsvc", "create tenants"), ("patch infsvc/status", "create acceleratorclasses")),
    ],
)
def test_kubernetes_own_roles_reach_our_kinds(
    installed: ControlPlane, namespace: str, role: str, may: tuple[str, ...], may_not: tuple[str, ...]
) -> None:
    """Whoever may view, edit or administrate a namespace needs no role of ours."""
    person = f"{role}-of-{namespace}"
    program = [*installed.kubectl, f"--namespace={namespace}"]
    kubectl.run(program, "create", "rolebinding", role, f"--clusterrole={role}", f"--user={person}")

    def allowed(asked: str) -> bool:
        verb, kind = asked.split()
        kind, _, part = kind.replace("infsvc", "inferenceservices").partition("/")
        words = [verb, f"{kind}.serving.kvasir.dev", f"--subresource={part}", f"--as={person}"]
        return kubectl.attempt(program, "auth", "can-i", *words).strip() == "yes"

    deadline = time.monotonic() + 60.0  # the controller that aggregates roles works beside the API server
    while not all(map(allowed, may)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert {asked: allowed(asked) for asked in may} == dict.fromkeys(may, True)
    assert {asked: allowed(asked) for asked in may_not} == dict.fromkeys(may_not, False)
