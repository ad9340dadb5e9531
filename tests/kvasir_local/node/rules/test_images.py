"""Image names and the programs that they mean."""

import pytest

from kvasir_local.node.rules import images
from kvasir_local.node.rules.images import Image, Programs

PROGRAMS = Programs(scripts="/venv/bin", envoy="/venv/envoy")


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("kvasir-runtime", "kvasir-runtime"),
        ("registry.example:5000/team/kvasir-runtime:1.2@sha256:ab", "kvasir-runtime"),
        ("localhost:5000/kvasir-runtime", "kvasir-runtime"),
        ("envoyproxy/envoy:v1.36", "envoy"),
    ],
)
def test_the_basename_has_no_registry_tag_or_digest(name: str, base: str):
    assert images.basename(name) == base


@pytest.mark.parametrize(
    ("name", "entrypoint"),
    [
        ("x/kvasir-operator:1", ("/venv/bin/kvasir", "operator")),
        ("x/kvasir-gateway:1", ("/venv/bin/kvasir", "gateway")),
        ("x/kvasir-runtime:1", ("/venv/bin/kvasir", "serve")),
        ("x/kvasir-runtime-cpu:1", ("/venv/bin/kvasir", "serve")),
        ("envoyproxy/envoy:v1.36", ("/venv/envoy",)),
        ("kvasir-local/process", ()),
    ],
)
def test_known_images_start_their_program(name: str, entrypoint: tuple[str, ...]):
    assert images.image_of(name, PROGRAMS) == Image(entrypoint=entrypoint)


@pytest.mark.parametrize("name", ["nginx", "busybox:1", "process", "kvasir-runtime-evil"])
def test_other_images_have_no_program(name: str):
    assert images.image_of(name, PROGRAMS) is None


def test_envoy_is_unknown_where_it_is_not_installed():
    assert images.image_of("envoyproxy/envoy", Programs(scripts="/venv/bin", envoy=None)) is None


@pytest.mark.parametrize(
    ("command", "args", "want"),
    [
        ((), (), ("entry", "cmd")),
        ((), ("a",), ("entry", "a")),
        (("c",), (), ("c",)),
        (("c",), ("a",), ("c", "a")),
    ],
)
def test_command_replaces_the_entrypoint_and_args_the_cmd(command, args, want):
    assert images.argv(Image(entrypoint=("entry",), command=("cmd",)), command, args) == want
