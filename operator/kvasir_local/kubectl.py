"""Runs the kubectl of a local cluster: its shell, for whatever a person would do by hand. It decides nothing.

`program` is the beginning of the command line, as `ControlPlane.kubectl` gives it.
"""

import subprocess
from collections.abc import Sequence
from typing import Final

from kvasir_local.errors import StepFailedError

_TIMEOUT_S: Final = 60.0
_FIELD_MANAGER: Final = "kvasir-local"


def run(program: Sequence[str], *arguments: str, stdin: str | None = None) -> str:
    """What kubectl printed. StepFailedError, with its complaint, when it fails."""
    command = [*program, *arguments]
    try:
        result = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise StepFailedError(f"kubectl {' '.join(arguments)} took over {_TIMEOUT_S:.0f} s") from error
    if result.returncode != 0:
        raise StepFailedError(f"kubectl {' '.join(arguments)} failed: {result.stderr.strip()}")
    return result.stdout


def attempt(program: Sequence[str], *arguments: str) -> str:
    """The same for a post-mortem: a failure is text like any other."""
    try:
        return run(program, *arguments)
    except StepFailedError as error:
        return str(error)


def apply(program: Sequence[str], manifest: str) -> str:
    """Applies objects, given as YAML or JSON, server-side under our field manager; returns kubectl's lines."""
    flags = ("--server-side", "--force-conflicts", f"--field-manager={_FIELD_MANAGER}", "--filename=-")
    return run(program, "apply", *flags, stdin=manifest)
