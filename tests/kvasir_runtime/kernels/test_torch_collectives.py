"""Ranks with a device each exchange tensors by torch.distributed: between processes, here by gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fakes.gloo_rank import RANKS
from kvasir_runtime.kernels import backends
from kvasir_runtime.kernels.cpu import library

pytestmark = pytest.mark.skipif(library.library() is None, reason=f"no C++ kernels: {library.absence()}")
TESTS = Path(__file__).parents[2]


def test_processes_exchange_tensors_and_messages(tmp_path: Path) -> None:
    descriptor = backends.rank_memory(RANKS)
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = (sys.executable, "-m", "fakes.gloo_rank", str(descriptor))
    processes = [
        subprocess.Popen(
            (*command, str(rank), str(tmp_path / "meeting")), pass_fds=(descriptor,), stdout=subprocess.PIPE, env=env
        )
        for rank in range(RANKS)
    ]
    os.close(descriptor)
    found = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    assert [process.returncode for process in processes] == [0] * RANKS
    columns = [[2.0, 4.0], [4.0, 8.0], [6.0, 12.0]]
    for rank, one in enumerate(found):
        assert one["sum"] == [[6.0, 12.0], [18.0, 24.0]]
        assert one["sum of columns"] == [12.0, 24.0]
        assert one["gathered"] == ([columns[rank]] if rank else columns)
        assert one["shared"] == [0, 7, 14, 21]
        assert one["message"] == "from 0"
    assert {one["lost"] for one in found} == {"rank 2 was killed by SIGKILL"}
