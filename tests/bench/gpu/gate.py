"""Whether what is about to be measured is right: kernels against their references, a model against the CPU's.

Some of the tests that `make test-gpu` runs. Where one fails no other section is run: wrong results are easily quick.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from bench.gpu.book import Cell, failed, measured, skipped
from bench.gpu.section import NO_TIME, Context

ROOT: Final = Path(__file__).parents[3]
CHECKS: Final = {
    "kernels agree with their references": ("tests/kvasir_runtime/kernels/test_ops.py", "-k", "triton or cuda"),
    "a model says what the CPU's says": ("tests/gpu",),
}
DRY_CHECKS: Final = {"a model says what the CPU's says": ("tests/gpu", "-k", "two_plans and (llama or latents)")}
WORKERS: Final = 8
_PASSED: Final = re.compile(r"(\d+) passed")


def cells(context: Context) -> Iterator[Cell]:
    """How many cases passed, in what time."""
    for name, what in (CHECKS if context.sizes.name == "full" else DRY_CHECKS).items():
        if context.left_s < 1.0:
            yield skipped("gate", name, NO_TIME)
            continue
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *what]
        if context.sizes.name == "full" and find_spec("xdist"):
            command += ["-n", str(WORKERS)]  # most of the time goes into compiling kernels
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=context.left_s,
                env=_environment(),
            )
        except subprocess.TimeoutExpired:
            yield skipped("gate", name, f"{NO_TIME}; what follows is measured unproven")
            continue
        passed = _PASSED.search(done.stdout)
        if done.returncode or not passed:
            yield failed("gate", name, (done.stdout + done.stderr)[-400:])
        else:
            yield measured("gate", name, [float(passed[1])], unit="cases", more=True)


def _environment() -> dict[str, str]:
    """Without what would make the kernels be interpreted, or a pytest inside of a pytest part of it."""
    dropped = ("TRITON_INTERPRET", "PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS")
    return {name: value for name, value in os.environ.items() if name not in dropped}
