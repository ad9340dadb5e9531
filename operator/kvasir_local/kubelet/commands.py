"""Runs programs that answer at once, such as lists of images. Called by `images` and `containerd_images`."""

import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from kvasir_local.errors import StepFailedError

_TIMEOUT_S: Final = 120.0


def answer(command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What a command did, whatever its exit code. StepFailedError when it does not end."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S, env=environment)
    except subprocess.TimeoutExpired:
        raise StepFailedError(f"{' '.join(command)} took over {_TIMEOUT_S:g} s") from None


def output(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """What a command printed. StepFailedError with its error when it fails or does not end."""
    result = answer(command, environment)
    if result.returncode != 0:
        raise StepFailedError(f"{' '.join(command)} failed: {result.stderr.strip()}")
    return result.stdout
