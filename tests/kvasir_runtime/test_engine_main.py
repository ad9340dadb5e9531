"""The engine process before it knows what to serve."""

import subprocess
import sys

import pytest

from kvasir_runtime import engine_main

PROGRAM = """
import sys
from kvasir_runtime import engine_main
code, modules = engine_main.main(), sys.modules.items()
print(code, [name for name, module in modules if name.startswith("cuda.") and module], "torch" in sys.modules)
"""


@pytest.mark.skipif(engine_main.has_cuda_driver(), reason="there is a driver")
def test_without_a_driver_torch_is_imported_without_nvidias_bindings() -> None:
    """Its standard input has ended, so it leaves with 1 once torch is there."""
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("1 [] True", "")
