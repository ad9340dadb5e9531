"""The Triton kernels on the CPU: their tests once more, each file in a process of its own whose Triton interprets.

Triton decides at import whether it interprets, and what it patches for that would reach other tests of this worker.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = ["../test_ops.py", *sorted(f"interpreted/{path.name}" for path in HERE.glob("interpreted/test_*.py"))]

pytest.importorskip("triton")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FILES)
def test_kernels_pass_when_interpreted(name: str) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    # No conftest: those of this run would look for its control plane.
    command = [sys.executable, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-p", "no:xdist"]
    result = subprocess.run(
        [*command, str(HERE / name)], env=environment, capture_output=True, text=True, check=False, cwd=HERE.parents[2]
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert " passed" in result.stdout
    assert " skipped" not in result.stdout
