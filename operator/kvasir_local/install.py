"""Installs our manifests into a running local cluster and waits for their workloads. Called by `stack`.

It renders with `kubectl kustomize` and applies server-side, as a user of a cluster of one's own would.
"""

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kvasir_api.names import SYSTEM_NAMESPACE
from kvasir_local.errors import StepFailedError
from kvasir_local.readiness import Readiness, readiness
from kvasir_local.say import Say

READY_TIMEOUT_S: Final = 120.0
_KUBECTL_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.25
_FIELD_MANAGER: Final = "kvasir-local"


def find_manifests() -> Path | None:
    """The local overlay of the checkout that we run from; None when we were installed without one."""
    for parent in (Path.cwd(), *Path.cwd().parents, *Path(__file__).resolve().parents):
        if (parent / "manifests" / "local" / "kustomization.yaml").is_file():
            return parent / "manifests" / "local"
    return None


def apply(kubectl: Sequence[str], overlay: Path, *, say: Say) -> None:
    """Renders and applies one kustomization. StepFailedError with what kubectl said."""
    say.waiting(f"applying {overlay}…")
    rendered = run(kubectl, "kustomize", str(overlay))
    said = run(
        kubectl,
        "apply",
        "--server-side",
        "--force-conflicts",
        f"--field-manager={_FIELD_MANAGER}",
        "--filename=-",
        stdin=rendered,
    )
    run(kubectl, "wait", "--for=condition=Established", "--all", "crd", "--timeout=30s")
    changed = sum(1 for line in said.splitlines() if line.endswith(" serverside-applied"))
    say.done(f"applied {changed} objects of {overlay}")


def await_workloads(kubectl: Sequence[str], *, say: Say, timeout_s: float = READY_TIMEOUT_S) -> None:
    """Returns when every Deployment of the system namespace is available; StepFailedError with a post-mortem."""
    started = time.monotonic()
    while True:
        now = _look(kubectl)
        elapsed_s = time.monotonic() - started
        if now.ready:
            say.done(f"ready after {elapsed_s:.1f} s: {now.text}")
            return
        if elapsed_s > timeout_s:
            raise StepFailedError(f"not ready after {timeout_s:.0f} s: {now.text}\n{post_mortem(kubectl, now.failing)}")
        say.waiting(f"waiting for {now.text}… {elapsed_s:.0f} s")
        time.sleep(_POLL_S)


def post_mortem(kubectl: Sequence[str], pods: Sequence[str]) -> str:
    """The last log lines of some pods and the latest events of their namespace, as far as they can be had."""
    parts = []
    for pod in pods:
        arguments = [f"--namespace={SYSTEM_NAMESPACE}", pod, "--all-containers", "--prefix", "--tail=15"]
        parts.append(_indented(f"log of {pod}", _attempt(kubectl, "logs", *arguments)))
    events = _attempt(kubectl, "events", f"--namespace={SYSTEM_NAMESPACE}", "--types=Warning")
    parts.append(_indented("warnings", "\n".join(events.splitlines()[-10:])))
    return "\n".join(parts)


def run(kubectl: Sequence[str], *arguments: str, stdin: str | None = None) -> str:
    """What kubectl printed. StepFailedError, with its complaint, when it fails."""
    command = [*kubectl, *arguments]
    try:
        result = subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=False, timeout=_KUBECTL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise StepFailedError(f"kubectl {' '.join(arguments)} took over {_KUBECTL_TIMEOUT_S:.0f} s") from error
    if result.returncode != 0:
        raise StepFailedError(f"kubectl {' '.join(arguments)} failed: {result.stderr.strip()}")
    return result.stdout


def _look(kubectl: Sequence[str]) -> Readiness:
    found = json.loads(run(kubectl, "get", "deployments,pods", f"--namespace={SYSTEM_NAMESPACE}", "--output=json"))
    items: list[dict[str, Any]] = found["items"]
    return readiness(
        [item for item in items if item["kind"] == "Deployment"], [item for item in items if item["kind"] == "Pod"]
    )


def _attempt(kubectl: Sequence[str], *arguments: str) -> str:
    try:
        return run(kubectl, *arguments)
    except StepFailedError as error:
        return str(error)


def _indented(title: str, text: str) -> str:
    return "\n".join([f"  {title}:", *(f"    {line[:300]}" for line in text.splitlines())])
