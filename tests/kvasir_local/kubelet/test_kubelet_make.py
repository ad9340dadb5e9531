"""`make test-kubelet` stops its cluster, however it ends."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("up", "tests"), [(0, 0), (0, 3), (1, 0)])
def test_the_cluster_is_stopped_and_a_failure_is_one(tmp_path, up, tests):
    for name, code in (("kvasir", up), ("python", tests)):
        ends = f'case "$*" in *down*) exit 0;; *) exit {code};; esac'
        (tmp_path / name).write_text(f'#!/bin/sh\necho "{name} $*" >>calls\n{ends}\n')
        (tmp_path / name).chmod(0o755)
    command = ["make", f"--file={ROOT / 'Makefile'}", "--old-file=setup", "test-kubelet", f"BIN={tmp_path}"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert (result.returncode == 0) is (up == tests == 0), result.stderr
    assert len([call for call in calls if call.startswith("python")]) == (1 if up == 0 else 0)
    assert "--owner-pid" in calls[0], "a cluster whose run is killed would stay"
    assert calls[-1] == "kvasir local down --state-dir .kvasir/kubelet"
