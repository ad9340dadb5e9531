"""What to build from which Go module, with which flags, and how long that took where it was measured.

Pure: `gobuild` runs it. Versions here, in gomod/*/go.mod and in the name of the cache directory change together; a test
compares them.
"""

from dataclasses import dataclass
from typing import Final

from kvasir_local import component_flags

KUBERNETES: Final = "v1.34.2"
ETCD: Final = "v3.6.5"
COREDNS: Final = "v1.14.3"
KUBE_ROUTER: Final = "v2.1.0"
DISTRIBUTION: Final = "v3.1.2"
CACHE_NAME: Final = f"kubernetes-{KUBERNETES}-linux-amd64"
NODE_CACHE_NAME: Final = f"kubelet-{KUBERNETES}-linux-amd64"
REGISTRY_CACHE_NAME: Final = f"distribution-{DISTRIBUTION}-linux-amd64"

_VERSION_PACKAGES: Final = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One `go build`. module: a directory below gomod/, which has least_go; expected_s: on two cores, all cold."""

    binary: str
    module: str
    package: str
    flags: tuple[str, ...]
    least_go: tuple[int, int]
    expected_s: int


def steps() -> tuple[Step, ...]:
    """In this order: kube-apiserver compiles most of what the others share, so it pays for all."""
    expected_s = {
        component_flags.APISERVER: 226,
        component_flags.CONTROLLER_MANAGER: 57,
        component_flags.SCHEDULER: 8,
        component_flags.KUBECTL: 30,
    }
    etcd = _plain(component_flags.ETCD, "go.etcd.io/etcd/server/v3", (1, 24), 25)
    return (etcd, *(_kubernetes(binary, seconds) for binary, seconds in expected_s.items()))


def node_steps() -> tuple[Step, ...]:
    """What a real node needs besides; only `up --kubelet` builds it."""
    return (_kubernetes(component_flags.KUBELET, 300), _kubernetes(component_flags.KUBE_PROXY, 30))


def network_steps() -> dict[str, Step]:
    """What the network of real nodes needs, by the name of the cache directory that each has of its own: names, and a
    controller that enforces NetworkPolicies."""
    router = "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"
    return {
        f"coredns-{COREDNS}-linux-amd64": _plain(component_flags.COREDNS, "kvasir.dev/local/coredns", (1, 25), 90),
        f"kube-router-{KUBE_ROUTER}-linux-amd64": _plain(component_flags.KUBE_ROUTER, router, (1, 26), 90),
    }


def registry_step() -> Step:
    """A registry for tests of models that replicas fetch; no cluster starts it."""
    return _plain("distribution", "kvasir.dev/local/distribution", (1, 26), 60)


def go_version(text: str) -> tuple[int, int] | None:
    """Major and minor of what `go env GOVERSION` prints, `go1.26.8`; None for anything else, such as a devel build."""
    numbers = text.strip().removeprefix("go").split(".")
    try:
        return int(numbers[0]), int(numbers[1])
    except (ValueError, IndexError):
        return None


def _plain(binary: str, package: str, least_go: tuple[int, int], expected_s: int) -> Step:
    """Of a module that has the binary's name."""
    flags = ("-trimpath", "-ldflags", "-s -w")
    return Step(binary=binary, module=binary, package=package, flags=flags, least_go=least_go, expected_s=expected_s)


def _kubernetes(binary: str, expected_s: int) -> Step:
    return Step(
        binary=binary,
        module="kubernetes",
        package=f"k8s.io/kubernetes/cmd/{binary}",
        flags=("-trimpath", "-tags", "providerless", "-ldflags", _version_flags()),
        least_go=(1, 24),
        expected_s=expected_s,
    )


def _version_flags() -> str:
    """Without these, clients see v0.0.0-master and refuse or warn."""
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    values = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    settings = [f"-X {package}.{name}={value}" for package in _VERSION_PACKAGES for name, value in values.items()]
    return " ".join(["-s", "-w", *settings])
