"""Image files against what the process node starts for the same names, and against the rules for images."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kvasir_api import names
from kvasir_local.node.rules.images import Programs, image_of

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "images"
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
    installs = re.findall(r"(uv pip install .*-r pyproject\.toml.*?-c constraints\.txt)", text_of(image))
    assert installs == [
        f"uv pip install --compile-bytecode -r pyproject.toml --extra {FILES[image][1]} -c constraints.txt"
    ]


def test_an_index_without_pinned_hashes_brings_torch_alone():
    (install,) = re.findall(r"uv pip install (.*) --index-url .*$", text_of(names.IMAGE_RUNTIME_CPU), re.MULTILINE)
    assert install == "--no-deps"


@pytest.mark.parametrize("image", FILES)
def test_image_has_every_script_of_the_project(image):
    assert " && mv /opt/project/bin /opt/scripts " in text_of(image)
    assert "COPY --from=project /opt/scripts /opt/kvasir/bin\n" in text_of(image)


@pytest.mark.parametrize("image", FILES)
def test_image_runs_as_a_numbered_user(image):
    assert re.findall(r"^USER (.+)$", text_of(image), re.MULTILINE) == ["65532:65532"]


def test_every_image_file_is_known():
    assert {path.stem for path in FOLDER.glob("*.Dockerfile")} == {file for file, _ in FILES.values()}


@pytest.mark.parametrize("image", FILES)
def test_image_names_no_device_of_its_node(image):
    assert "NVIDIA_VISIBLE_DEVICES" not in text_of(image)


@pytest.mark.parametrize("image", FILES)
def test_image_is_labelled_and_has_the_list_of_what_is_in_it(image):
    text = text_of(image)
    assert f'org.opencontainers.image.title="{image}"' in text
    assert f"images/sbom.py {image} /opt/kvasir/lib/python3.11/site-packages /opt/project >/opt/sbom.cdx.json" in text
    assert "COPY --from=project /opt/sbom.cdx.json /opt/kvasir/sbom.cdx.json\n" in text


def pinned(image, project):
    """What the first stage of an image keeps of a pyproject.toml, by its own command."""
    (expression,) = re.findall(r"RUN sed -i '(.+?)' pyproject\.toml", text_of(image))
    return subprocess.run(["sed", expression], input=project, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("image", FILES)
def test_settings_of_tools_do_not_change_the_layer_of_the_libraries(image):
    text = (ROOT / "pyproject.toml").read_text()
    found, whole = tomllib.loads(pinned(image, text)), tomllib.loads(text)
    assert set(found) == {"build-system", "project"}
    for name in ("dependencies", "optional-dependencies"):
        assert found["project"][name] == whole["project"][name]


@pytest.mark.parametrize("image", FILES)
def test_a_release_does_not_change_the_layer_of_the_libraries(image):
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    later = text.replace(f'"{project["version"]}"', '"9.8.7"', 1).replace(project["description"], "Serve models", 1)
    assert {"version": "9.8.7", "description": "Serve models"}.items() <= tomllib.loads(later)["project"].items()
    assert pinned(image, later) == pinned(image, text)


def bill(directory, *distributions):
    """The SBOM of a directory with these distributions: name, version, further metadata."""
    for name, version, *more in distributions:
        folder = directory / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(
            "\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *more])
        )
    command = [sys.executable, FOLDER / "sbom.py", "kvasir-operator", directory]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_the_list_of_an_image_has_every_distribution_its_license_and_what_it_requires(tmp_path):
    done = bill(
        tmp_path,
        ("kvasir-serving", "0.1.0", "Requires-Dist: Under_Scored>=2,<3", "Requires-Dist: absent; extra == 'x'"),
        ("Under_Scored", "2.1", "License-Expression: MIT", "Requires-Dist: under-scored[more]; extra == 'all'"),
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.6")
    assert found["metadata"]["component"]["name"] == "kvasir-operator"
    assert found["components"] == [
        {
            "type": "library",
            "bom-ref": "pkg:pypi/kvasir-serving@0.1.0",
            "name": "kvasir-serving",
            "version": "0.1.0",
            "purl": "pkg:pypi/kvasir-serving@0.1.0",
        },
        {
            "type": "library",
            "bom-ref": "pkg:pypi/under-scored@2.1",
            "name": "under-scored",
            "version": "2.1",
            "purl": "pkg:pypi/under-scored@2.1",
            "licenses": [{"expression": "MIT"}],
        },
    ]
    assert found["dependencies"] == [
        {"ref": "kvasir-operator", "dependsOn": ["pkg:pypi/kvasir-serving@0.1.0"]},
        {"ref": "pkg:pypi/kvasir-serving@0.1.0", "dependsOn": ["pkg:pypi/under-scored@2.1"]},
        {"ref": "pkg:pypi/under-scored@2.1", "dependsOn": []},
    ]


@pytest.mark.parametrize(
    ("distributions", "words"),
    [
        ([("x", "1")], "kvasir-serving is not among the 1 distributions"),
        ([("kvasir-serving", "1"), ("x", "1"), ("x", "2")], "installed twice"),
    ],
)
def test_no_list_is_written_of_what_is_not_an_image_of_ours(tmp_path, distributions, words):
    done = bill(tmp_path, *distributions)
    assert done.returncode != 0
    assert words in done.stderr
