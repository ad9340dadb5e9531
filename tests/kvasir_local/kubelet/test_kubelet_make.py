"""`make test-kubelet` stops its cluster, however it ends."""

import os
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


@pytest.mark.parametrize(
    ("check", "up", "tests", "code", "said"),
    [
        (1, 0, 0, 0, "left out: why --check"),
        (0, 1, 0, 0, "left out: it was not ready"),
        (0, 0, 124, 0, "left out: its tests were not over"),
        (0, 0, 1, 1, "of pytest"),
        (0, 0, 5, 5, "of pytest"),
        (0, 0, 0, 0, "ci: real node: of pytest, ready after"),
    ],
)
def test_only_a_test_that_fails_on_a_real_node_fails_continuous_integration(tmp_path, check, up, tests, code, said):
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    ends = f'case "$*" in *--check*) echo why --check; exit {check};; *down*) exit 0;; *) exit {up};; esac'
    for name, body in (("kvasir", ends), ("python", f'echo "= of pytest ="; exit {tests}')):
        (programs / name).write_text(f'#!/bin/sh\necho "{name} $*" >>calls\n{body}\n')
        (programs / name).chmod(0o755)
    script = tmp_path / ".ci" / "real-node"
    script.parent.mkdir()
    script.write_text((ROOT / ".ci" / "real-node").read_text().replace("FREE_KB=15000000", "FREE_KB=0"))
    result = subprocess.run(
        ["bash", script],
        env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == code, result.stderr
    assert said in result.stdout
    calls = (tmp_path / "calls").read_text().splitlines()
    assert ("down --state-dir .kvasir/real-node" in calls[-1]) is (check == 0)
