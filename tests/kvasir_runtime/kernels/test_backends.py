"""Which table a device gets, and what it costs: each question in a process of its own, as imports are the answer."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import sys
{before}
import torch
from kvasir_runtime.kernels.backends import ops_for
ops = ops_for(torch.device("{device}"))
print(ops.name, ops.fallback, sys.modules.get("triton") is not None, sep=";")
"""


@pytest.mark.parametrize(
    ("device", "interpret", "before", "want"),
    [
        ("cpu", "0", "import os; os.environ['KVASIR_KERNELS'] = 'torch'", "cpu;KVASIR_KERNELS=torch;False"),
        ("cpu", "0", "", "cpu *;;False"),
        ("cpu", "1", "", "triton;;True"),
        ("cuda", "0", "", "triton;;True"),
        ("cuda", "0", "sys.modules['triton'] = None", "reference;triton cannot be imported: *;False"),
    ],
    ids=["torch", "cpp", "interpreter", "cuda", "no-triton"],
)
def test_device_gets_its_table(device: str, interpret: str, before: str, want: str) -> None:
    program = PROGRAM.format(before=before, device=device)
    environment = {**os.environ, "TRITON_INTERPRET": interpret}
    command = [sys.executable, "-c", program]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    start, _, end = want.partition("*")
    assert result.stdout.strip().startswith(start)
    assert result.stdout.strip().endswith(end)
