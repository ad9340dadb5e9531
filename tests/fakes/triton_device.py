"""Where Triton kernels can run here: on a card, or on a CPU whose Triton was told to interpret."""

import os

import pytest
import torch


def device() -> torch.device:
    """The device for the kernels' tests; the module that asks is skipped where there is none."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("no card; test_gpu_interpreted.py runs this file in a process of its own", allow_module_level=True)
    return torch.device("cpu")
