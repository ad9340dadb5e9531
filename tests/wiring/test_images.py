"""Image files against what the process node starts for the same names, and against the rules for images."""

import json
import re
from pathlib import Path

import pytest

from kvasir_api import names
from kvasir_local.node.rules.images import Programs, image_of

FOLDER = Path(__file__).resolve().parents[2] / "images"
FILES = {
    names.IMAGE_OPERATOR: ("operator", "operator"),
    names.IMAGE_GATEWAY: ("gateway", "gateway"),
    names.IMAGE_RUNTIME: ("runtime", "runtime --extra otel"),
    names.IMAGE_RUNTIME_CPU: ("runtime-cpu", "runtime --extra otel"),
}


def text_of(image):
    return (FOLDER / f"{FILES[image][0]}.Dockerfile").read_text()


@pytest.mark.parametrize("image", FILES)
def test_image_starts_what_the_process_node_starts(image):
    entrypoint = re.search(r"^ENTRYPOINT (.+)$", text_of(image), re.MULTILINE)[1]
    local = image_of(f"registry.example/{image}:1", Programs(scripts="/opt/kvasir/bin", envoy=None))
    assert tuple(json.loads(entrypoint)) == local.entrypoint


@pytest.mark.parametrize("image", FILES)
def test_image_installs_its_extra_from_the_pins_and_nothing_else(image):
    installs = re.findall(r"uv pip install .*-r pyproject\.toml.*", text_of(image))
    assert installs == [
        f"uv pip install --compile-bytecode -r pyproject.toml --extra {FILES[image][1]} -c constraints.txt"
    ]


@pytest.mark.parametrize("image", FILES)
def test_image_runs_as_a_numbered_user(image):
    assert re.findall(r"^USER (.+)$", text_of(image), re.MULTILINE) == ["65532:65532"]


def test_every_image_file_is_known():
    assert {path.stem for path in FOLDER.glob("*.Dockerfile")} == {file for file, _ in FILES.values()}
