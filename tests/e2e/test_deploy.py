"""`make deploy` names the images that `make images` tags, in the pods and in what the operator starts."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir_local.control_plane import ControlPlane

OVERLAY = Path(__file__).parents[2] / "manifests" / "overlay.sh"


@pytest.mark.parametrize("registry", ["", "registry.example/team/"])
def test_rendered_manifests_name_the_tagged_images(cluster: ControlPlane, tmp_path: Path, registry: str) -> None:
    subprocess.run([OVERLAY, tmp_path / "deploy", registry, "1.2.3"], check=True)
    rendered = subprocess.run(
        [*cluster.kubectl, "kustomize", tmp_path / "deploy"], check=True, capture_output=True, text=True
    ).stdout
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(rendered))
    text = json.dumps([item for item in documents if item["kind"] == "Deployment"])
    for name in ("operator", "gateway"):
        assert f'"image": "{registry}kvasir-{name}:1.2.3"' in text
    operator = next(
        item for item in documents if item["kind"] == "Deployment" and "operator" in item["metadata"]["name"]
    )
    arguments = operator["spec"]["template"]["spec"]["containers"][0]["args"]
    last = {argument.split("=")[0]: argument.split("=")[1] for argument in arguments}
    assert last["--runtime-image"] == f"{registry}kvasir-runtime:1.2.3"
    assert last["--runtime-image-cpu"] == f"{registry}kvasir-runtime-cpu:1.2.3"
