"""Provides the binaries of the control plane: those of KUBEBUILDER_ASSETS, or of the per-user cache, or built into it.

Called by `stack` and by the tests' fixtures. Two that need a build at once do not build twice: the second waits.
"""

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from kvasir_local import buildplan, gobuild, locks
from kvasir_local.buildplan import Step
from kvasir_local.component_flags import BINARIES, NODE_BINARIES
from kvasir_local.errors import MissingToolError
from kvasir_local.progress import Progress

ASSETS: Final = "KUBEBUILDER_ASSETS"


def provide(*, progress: Progress, environment: Mapping[str, str] = os.environ) -> Path:
    """The directory that holds all of component_flags.BINARIES. MissingToolError when they cannot be provided."""
    assets = environment.get(ASSETS)
    if assets:
        absent = missing(Path(assets))
        if not absent:
            return Path(assets)
        progress.done(f"{ASSETS}={assets} lacks {', '.join(absent)}; using our own build")
    return _cached(buildplan.CACHE_NAME, BINARIES, buildplan.steps(), progress=progress, environment=environment)


def provide_node(*, progress: Progress, environment: Mapping[str, str] = os.environ) -> Path:
    """The directory that holds all of component_flags.NODE_BINARIES. MissingToolError when they cannot be provided."""
    plan = buildplan.node_steps()
    return _cached(buildplan.NODE_CACHE_NAME, NODE_BINARIES, plan, progress=progress, environment=environment)


def provide_network(*, progress: Progress, environment: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """The files of CoreDNS and kube-router, by their names. MissingToolError when they cannot be provided."""
    return {
        step.binary: _cached(name, (step.binary,), (step,), progress=progress, environment=environment) / step.binary
        for name, step in buildplan.network_steps().items()
    }


def provide_registry(*, progress: Progress, environment: Mapping[str, str] = os.environ) -> Path:
    """The file of a registry for tests. MissingToolError when it cannot be provided."""
    step = buildplan.registry_step()
    names, plan = (step.binary,), (step,)
    return _cached(buildplan.REGISTRY_CACHE_NAME, names, plan, progress=progress, environment=environment) / step.binary


def unbuilt(environment: Mapping[str, str] = os.environ) -> list[str]:
    """Binaries of real nodes and of their control plane that are not in the cache yet: minutes of building."""
    root = cache_root(environment)
    wanted: dict[str, Sequence[str]] = {buildplan.CACHE_NAME: BINARIES, buildplan.NODE_CACHE_NAME: NODE_BINARIES}
    wanted |= {name: (step.binary,) for name, step in buildplan.network_steps().items()}
    return [binary for name, binaries in wanted.items() for binary in missing(root / name, binaries)]


def check_network(*, scripts: str, environment: Mapping[str, str] = os.environ) -> None:
    """MissingToolError when provide_network has something to build and no go for it, which is newer than that of other
    builds. scripts: as find_go takes."""
    root = cache_root(environment)
    plan = [step for name, step in buildplan.network_steps().items() if missing(root / name, (step.binary,))]
    if plan:
        gobuild.find_go(plan, path=environment.get("PATH", ""), scripts=scripts)


def missing(directory: Path, names: Sequence[str] = BINARIES) -> list[str]:
    """Names of the binaries that are not there or cannot be executed."""
    return [name for name in names if not os.access(directory / name, os.X_OK)]


def cache_root(environment: Mapping[str, str]) -> Path:
    """The per-user cache of this project, by the XDG convention."""
    base = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvasir"


def _cached(
    name: str, names: Sequence[str], plan: Sequence[Step], *, progress: Progress, environment: Mapping[str, str]
) -> Path:
    wanted = cache_root(environment) / name
    if not missing(wanted, names):
        return wanted
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        raise MissingToolError(
            f"the local cluster is built for linux on x86_64, this is {sys.platform} on {os.uname().machine}"
        )
    _build_once(wanted, names, plan, progress)
    return wanted


def _build_once(wanted: Path, names: Sequence[str], plan: Sequence[Step], progress: Progress) -> None:
    wanted.parent.mkdir(parents=True, exist_ok=True)
    # Without a deadline: the other one has one for each of its steps.
    lock = wanted.parent / f".{wanted.name}.lock"
    with locks.held(lock, progress=progress, waiting=f"another process builds {wanted.name}"):
        if not missing(wanted, names):
            return
        work = wanted.parent / f".{wanted.name}.work"
        shutil.rmtree(work, ignore_errors=True)  # of a builder that was killed
        shutil.rmtree(wanted, ignore_errors=True)
        try:
            gobuild.build(work, plan, progress=progress).rename(wanted)
        finally:
            shutil.rmtree(work, ignore_errors=True)
