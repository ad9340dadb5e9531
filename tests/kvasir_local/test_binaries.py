"""Where the binaries come from, and what is built when they are nowhere."""

import re
from pathlib import Path

import pytest

import kvasir_local
from kvasir_local import binaries, buildplan, component_flags, gobuild
from kvasir_local.errors import MissingToolError
from kvasir_local.progress import SilentProgress

GOMOD = Path(kvasir_local.__file__).parent / "gomod"


class Told(SilentProgress):
    def __init__(self):
        self.lines = []

    def done(self, text):
        self.lines.append(text)


def fill(directory, names=component_flags.BINARIES):
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).touch(mode=0o755)
    return directory


def test_assets_win_over_the_cache(tmp_path):
    assets = fill(tmp_path / "assets")
    fill(tmp_path / "cache" / "kvasir" / buildplan.CACHE_NAME)
    environment = {"KUBEBUILDER_ASSETS": str(assets), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert binaries.provide(progress=SilentProgress(), environment=environment) == assets


def test_assets_that_lack_something_are_said_and_left(tmp_path):
    assets = fill(tmp_path / "assets", ("etcd", "kube-apiserver", "kubectl"))
    cache = fill(tmp_path / "cache" / "kvasir" / buildplan.CACHE_NAME)
    told = Told()
    environment = {"KUBEBUILDER_ASSETS": str(assets), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert binaries.provide(progress=told, environment=environment) == cache
    assert told.lines == [
        f"KUBEBUILDER_ASSETS={assets} lacks kube-controller-manager, kube-scheduler; using our own build"
    ]


def test_a_file_that_cannot_be_executed_is_missing(tmp_path):
    directory = fill(tmp_path / "bin")
    (directory / "etcd").chmod(0o644)
    assert binaries.missing(directory) == ["etcd"]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("go1.26.8\n", (1, 26)),
        ("go1.24", (1, 24)),
        ("go1.27rc1", None),
        ("devel +abc", None),
        ("", None),
    ],
)
def test_go_version(text, want):
    assert buildplan.go_version(text) == want


def go_of(directory, version):
    directory.mkdir()
    go = directory / "go"
    go.write_text(f"#!/bin/sh\necho {version}\n")
    go.chmod(0o755)
    return go


def test_a_new_enough_go_on_path_is_used(tmp_path):
    path = go_of(tmp_path / "path", "go1.25.0")
    scripts = go_of(tmp_path / "scripts", "go1.27.3")
    assert gobuild.find_go(path=str(path.parent), scripts=str(scripts.parent)) == path


def test_an_old_go_on_path_gives_way_to_the_wheel(tmp_path):
    path = go_of(tmp_path / "path", "go1.19.8")
    scripts = go_of(tmp_path / "scripts", "go1.27.3")
    assert gobuild.find_go(path=str(path.parent), scripts=str(scripts.parent)) == scripts


def test_no_go_is_said_with_what_was_found(tmp_path):
    path = go_of(tmp_path / "path", "go1.19.8")
    with pytest.raises(MissingToolError, match=r"go 1\.24 or newer.*go is go1\.19\.8"):
        gobuild.find_go(path=str(path.parent), scripts=str(tmp_path / "none"))


def test_every_binary_is_built():
    assert {step.binary for step in buildplan.steps()} == set(component_flags.BINARIES)


def test_module_files_pin_the_versions_of_the_plan():
    kubernetes = (GOMOD / "kubernetes" / "go.mod").read_text()
    staging = set(re.findall(r"k8s\.io/[\w-]+ => k8s\.io/[\w-]+ (v[\d.]+)", kubernetes))
    assert f"require k8s.io/kubernetes {buildplan.KUBERNETES}\n" in kubernetes
    assert staging == {buildplan.KUBERNETES.replace("v1.", "v0.")}
    assert f"go.etcd.io/etcd/server/v3 {buildplan.ETCD}\n" in (GOMOD / "etcd" / "go.mod").read_text()


def test_every_built_package_is_named_for_go_mod_tidy():
    for step in buildplan.steps():
        assert f'"{step.package}"' in (GOMOD / step.module / "tools.go").read_text()


def test_the_version_is_stamped_into_the_binaries():
    flags = next(step.flags for step in buildplan.steps() if step.binary == component_flags.APISERVER)
    assert f"-X k8s.io/component-base/version.gitVersion={buildplan.KUBERNETES}" in flags[-1]
    assert "gitMajor=1 " in flags[-1]
