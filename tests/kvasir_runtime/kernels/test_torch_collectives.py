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


def started(rank: int, descriptor: int, meeting: int) -> "subprocess.Popen[bytes]":
    command = (sys.executable, "-m", "fakes.gloo_rank", str(descriptor), str(rank), str(meeting))
    env = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.Popen(command, pass_fds=(descriptor, meeting), stdout=subprocess.PIPE, env=env)


def test_processes_exchange_tensors_and_messages() -> None:
    descriptor, meeting = backends.rank_memory(RANKS), os.memfd_create("meeting")
    processes = [started(rank, descriptor, meeting) for rank in range(RANKS)]
    os.close(descriptor)
    os.close(meeting)
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
