"""What a real node needs of this machine: root, and programs of Debian's packages. Called by `stack` before a start."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kvasir_local import locks
from kvasir_local.errors import MissingToolError
from kvasir_local.kubelet import prerequisites
from kvasir_local.kubelet.configs import CNI_PLUGINS
from kvasir_local.kubelet.network import ROOT
from kvasir_local.processes import STATE_DIR_VARIABLE
from kvasir_local.progress import Progress

PROGRAMS: Final = {
    "buildah": "buildah",
    "skopeo": "skopeo",
    "mmdebstrap": "mmdebstrap",
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ipset": "ipset",
    "iptables": "iptables",
    "ip": "iproute2",
    str(CNI_PLUGINS / "ptp"): "containernetworking-plugins",
}
"""Programs, by name or path, and the packages that bring them."""
_INSTALL: Final = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=60", "install", "--no-install-recommends")
_POLICY: Final = Path("/usr/sbin/policy-rc.d")
_MARK: Final = "# kvasir local up --kubelet: no service starts while its packages are installed"
_TIMEOUT_S: Final = 600.0
_IP_SET: Final = (
    "ipset create kvasir hash:ip && iptables --append FORWARD --match set --match-set kvasir src --jump ACCEPT"
)
"""A rule as kube-router writes them. Without sets of the kernel it writes none, goes on, and admits everything."""


def check() -> None:
    """MissingToolError where this machine or its user cannot run a kubelet at all: before anything is built."""
    if os.geteuid() != 0:
        raise MissingToolError("a kubelet needs root (control groups, mounts, network namespaces): run this with sudo")
    if lacking := prerequisites.lacking(prerequisites.read()):
        raise MissingToolError(f"a kubelet cannot run here, since this machine's root lacks {'; '.join(lacking)}")
    if pid := _foreign_kubelet():
        raise MissingToolError(f"pid {pid} is a kubelet of another cluster: two would share /var/lib/kubelet; stop it")


def provide(*, progress: Progress) -> None:
    """Installs the packages that are missing. MissingToolError: one line that says what cannot be had, and how to."""
    check()
    ROOT.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locks.held(ROOT / "packages.lock", progress=progress, waiting="another process installs packages"):
        remove_policy(_POLICY)  # of a run that was killed
        if absent := missing(path=os.environ.get("PATH", "")):
            _install(absent, progress)
    check_ip_sets()


def check_ip_sets() -> None:
    """MissingToolError where the kernel has no sets of addresses for rules. Tried in a network namespace that ends."""
    if failure := _run(["unshare", "--net", "sh", "-c", _IP_SET]):
        raise MissingToolError(f"NetworkPolicies need ip_set and xt_set of this machine's kernel: {failure}")


def _install(absent: list[str], progress: Progress) -> None:
    command = f"apt-get install --no-install-recommends {' '.join(absent)}"
    if shutil.which("apt-get") is None:
        raise MissingToolError(f"a kubelet needs programs of {', '.join(absent)}; as Debian has it: {command}")
    progress.waiting(f"installing {', '.join(absent)}…")
    with no_services(_POLICY):
        failure = _run(["apt-get", "-qq", "update"]) or _run([*_INSTALL, *absent])
    if failure or missing(path=os.environ.get("PATH", "")):
        raise MissingToolError(f"{command}: {failure or 'its programs are not where they belong'}")
    progress.done(f"installed {', '.join(absent)}")


def missing(*, path: str, programs: Mapping[str, str] = PROGRAMS) -> list[str]:
    """Packages of the programs that `path`, or their own path, lacks; sorted."""
    return sorted({package for program, package in programs.items() if shutil.which(program, path=path) is None})


@contextlib.contextmanager
def no_services(policy: Path) -> Iterator[None]:
    """While packages are installed none of their services is started, as in a container; containerd has one.

    policy: the file that Debian's invoke-rc.d asks; one of another program is left alone.
    """
    if not policy.exists():
        policy.write_text(f"#!/bin/sh\n{_MARK}\nexit 101\n")
        policy.chmod(0o755)
    try:
        yield
    finally:
        remove_policy(policy)


def remove_policy(policy: Path) -> None:
    """Removes the file of `no_services`."""
    if policy.exists() and _MARK in policy.read_text(errors="replace"):
        policy.unlink()


def _run(command: list[str]) -> str:
    """The last line of what a command that failed printed; empty when it did not fail."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=_TIMEOUT_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return f"took over {_TIMEOUT_S:g} s"
    lines = (result.stdout + result.stderr).strip().splitlines()
    return "" if result.returncode == 0 else (lines[-1] if lines else f"exit code {result.returncode}")


def _foreign_kubelet() -> str | None:
    """The pid of a kubelet that no local cluster has started. Each of them uses the one directory for devices."""
    for entry in Path("/proc").iterdir():
        try:
            found = entry.name.isdigit() and (entry / "comm").read_text().strip() == "kubelet"
            if found and f"{STATE_DIR_VARIABLE}=".encode() not in (entry / "environ").read_bytes():
                return entry.name
        except OSError:  # gone meanwhile
            continue
    return None
