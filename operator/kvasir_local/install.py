"""Installs our manifests into a running local cluster and waits for their workloads. Called by `stack`.

It renders with `kubectl kustomize` and applies server-side, as a user of a cluster of one's own would.
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kvasir_api.names import PORT_GATEWAY, SYSTEM_NAMESPACE
from kvasir_local import kubectl
from kvasir_local.component_flags import HOST
from kvasir_local.errors import StepFailedError
from kvasir_local.progress import Progress
from kvasir_local.readiness import Readiness, readiness

READY_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.25


def find_checkout() -> Path | None:
    """The repository that we run from; None when we were installed without one."""
    for parent in (Path.cwd(), *Path.cwd().parents, *Path(__file__).resolve().parents):
        if (parent / "manifests" / "local" / "kustomization.yaml").is_file():
            return parent
    return None


def find_manifests() -> Path | None:
    """The local overlay of the checkout that we run from, None without one."""
    checkout = find_checkout()
    return checkout / "manifests" / "local" if checkout is not None else None


def apply(program: Sequence[str], overlay: Path, *, node_address: str, progress: Progress) -> None:
    """Renders and applies one kustomization. StepFailedError with what kubectl said.

    node_address: where the gateway, a pod in the host's network, listens; the overlay writes 127.0.0.1.
    """
    progress.waiting(f"applying {overlay}…")
    rendered = kubectl.run(program, "kustomize", str(overlay))
    said = kubectl.apply(program, rendered.replace(gateway_url(HOST), gateway_url(node_address)))
    applied = [line.split()[0] for line in said.splitlines() if line.endswith(" serverside-applied")]
    definitions = [name for name in applied if name.startswith("customresourcedefinition.")]
    if definitions:
        kubectl.run(program, "wait", "--for=condition=Established", *definitions, "--timeout=30s")
    progress.done(f"applied {len(applied)} objects of {overlay}")


def gateway_url(address: str) -> str:
    """Where clients reach every service."""
    return f"http://{address}:{PORT_GATEWAY}"


def await_workloads(
    program: Sequence[str], *, progress: Progress, namespace: str = SYSTEM_NAMESPACE, timeout_s: float = READY_TIMEOUT_S
) -> None:
    """Returns when every Deployment of the namespace is available; StepFailedError with a post-mortem."""
    program = [*program, f"--namespace={namespace}"]
    started = time.monotonic()
    while True:
        now = _look(program)
        elapsed_s = time.monotonic() - started
        if now.ready:
            progress.done(f"ready after {elapsed_s:.1f} s: {now.text}")
            return
        if elapsed_s > timeout_s:
            raise StepFailedError(f"not ready after {timeout_s:.0f} s: {now.text}\n{post_mortem(program, now.failing)}")
        progress.waiting(f"waiting for {now.text}… {elapsed_s:.0f} s")
        time.sleep(_POLL_S)


def post_mortem(program: Sequence[str], pods: Sequence[str]) -> str:
    """The last log lines of some pods and the latest warnings of their namespace, as far as they can be had."""
    parts = []
    for pod in pods:
        said = kubectl.attempt(program, "logs", pod, "--all-containers", "--prefix", "--tail=15")
        parts.append(_indented(f"log of {pod}", said.splitlines()))
    warnings = kubectl.attempt(program, "events", "--types=Warning")
    parts.append(_indented("warnings", warnings.splitlines()[-10:]))
    return "\n".join(parts)


def _look(program: Sequence[str]) -> Readiness:
    found = kubectl.run(program, "get", "deployments,pods", "--output=json")
    items: list[dict[str, Any]] = json.loads(found)["items"]
    return readiness(
        [item for item in items if item["kind"] == "Deployment"], [item for item in items if item["kind"] == "Pod"]
    )


def _indented(title: str, lines: Sequence[str]) -> str:
    return "\n".join([f"  {title}:", *(f"    {line[:300]}" for line in lines)])
