"""Names and tags of the images that are built for real nodes."""

from pathlib import Path

import pytest

from kvasir_api import names
from kvasir_local.kubelet import images
from kvasir_local.kubelet.images import ImageBuilder
from kvasir_local.progress import SilentProgress

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("image", "want"),
    [
        ("kvasir-operator:1", "localhost/kvasir-operator:1"),
        ("envoyproxy/envoy:v1", "localhost/envoyproxy/envoy:v1"),
        ("localhost/kvasir-pause:1", "localhost/kvasir-pause:1"),
    ],
)
def test_no_name_in_the_store_is_that_of_a_registry(image, want):
    assert images.stored(image) == want


def test_our_images_start_from_the_base_that_is_made():
    for file in (ROOT / "images").glob("*.Dockerfile"):
        lines = file.read_text().splitlines()
        assert lines[[line.startswith("ARG") for line in lines].index(True)] == f"ARG PYTHON_IMAGE={images.BASE}"
        stages = [line.split()[1] for line in lines if line.startswith("FROM")]
        assert set(stages) == {"${PYTHON_IMAGE}", "build"}


def test_everything_that_an_image_copies_is_in_its_tag():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert set(images._CONTEXT) == allowed


def test_no_image_takes_kernels_that_were_built_on_another_machine():
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    # The last rule that matches counts.
    assert "**/*.so" in rules[max(n for n, rule in enumerate(rules) if rule.startswith("!")) :]


def test_every_image_of_a_cluster_on_processors_has_a_file():
    assert set(images.FILES) == {names.IMAGE_OPERATOR, names.IMAGE_GATEWAY, names.IMAGE_RUNTIME_CPU}
    assert all((ROOT / "images" / f"{file}.Dockerfile").is_file() for file in images.FILES.values())


def checkout(directory):
    (directory / "images").mkdir()
    for name in images._CONTEXT:
        (directory / name).write_text(name) if "." in name or name == "LICENSE" else (directory / name).mkdir()
    (directory / "operator" / "a.py").write_text("1")
    return directory


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"operator/a.py": "2"}, False),
        ({"operator/b.py": "1"}, False),
        ({"images/operator.Dockerfile": "FROM x"}, False),
        ({"images/sbom.py": "2"}, False),
        ({"operator/__pycache__/a.pyc": "x"}, True),
        ({"runtime/libkvasir.so": "built here"}, True),
        ({"docs.md": "x"}, True),
    ],
)
def test_a_tag_stands_for_what_is_built(tmp_path, change, same):
    before = images.tag_of(checkout(tmp_path))
    for name, text in change.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (images.tag_of(tmp_path) == before) is same


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ("operator/a.py", True),
        ("README.md", True),
        ("constraints.txt", False),
        ("images/operator.Dockerfile", False),
        ("runtime/kvasir_runtime/kernels/cpu/matmul.cpp", False),
    ],
)
def test_large_layers_are_made_of_libraries_and_kernels(tmp_path, change, same):
    before = images.large_layers_of(checkout(tmp_path))
    (tmp_path / change).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / change).write_text("changed")
    assert (images.large_layers_of(tmp_path) == before) is same


def test_a_build_lacks_what_its_store_has_not_made_for_this_checkout(tmp_path):
    store = tmp_path / "store"
    (tmp_path / "checkout").mkdir()
    place = checkout(tmp_path / "checkout")
    builder = ImageBuilder(store=store, checkout=place, progress=SilentProgress())
    assert builder.lacking() == [f"images with the libraries and kernels of {place}"]
    store.mkdir()
    (store / "large-layers.made").write_text(images.large_layers_of(place))
    assert builder.lacking() == []
    (place / "constraints.txt").write_text("torch==0")
    assert builder.lacking() != []


def test_two_clusters_do_not_build_at_once(tmp_path):
    class Impatient(SilentProgress):
        def waiting(self, text):
            raise InterruptedError(text)

    first, second = (
        ImageBuilder(store=tmp_path, checkout=ROOT, progress=progress) for progress in (SilentProgress(), Impatient())
    )
    with first.held(), pytest.raises(InterruptedError, match="another process builds"), second.held():
        pass
    with second.held():
        pass
