"""`make demo` as a stranger runs it, without a terminal: every step happens, and nothing stays behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

KVASIR = Path(sys.executable).parent / "kvasir"
LIMIT_S = 300.0

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(2 * LIMIT_S)]


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "state"
    subprocess.run([KVASIR, "local", "down", "--state-dir", tmp_path / "state"], check=False, timeout=LIMIT_S / 2)


def _demo(state_dir: Path, output: Path, *arguments: str) -> subprocess.Popen[bytes]:
    with output.open("wb") as log:
        return subprocess.Popen(
            [KVASIR, "demo", "--state-dir", state_dir, *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
        )


def _processes_of(state_dir: Path) -> list[str]:
    """Command lines of living processes that were started for the cluster of that directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.fsencode(state_dir) in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_demo_shows_the_whole_thread_and_leaves_the_stack(state_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "demo.log"
    code = _demo(state_dir, output, "--load-seconds", "30").wait(LIMIT_S)
    said = output.read_text()
    assert code == 0, said
    assert "Kvasir serves large language models on Kubernetes" in said
    assert "scaled up to" in said
    assert " 0 broken" in said
    output = tmp_path / "demo-hub.log"  # on the cluster that runs
    code = _demo(state_dir, output, "--hub").wait(LIMIT_S)
    said = output.read_text()
    assert code == 0, said
    assert "were fetched from the hub; every replica loads commit" in said
    assert "Kvasir serves large language models on Kubernetes" in said
    pods = subprocess.run(
        [KVASIR, "local", "status", "--state-dir", state_dir], capture_output=True, text=True, check=False
    )
    assert pods.returncode == 0, pods.stdout
    assert "default/tiny-" in pods.stdout
    assert "default/tiny-hub-" in pods.stdout
    assert subprocess.run([KVASIR, "local", "down", "--state-dir", state_dir], check=False).returncode == 0
    assert _processes_of(state_dir) == []


def test_interrupted_demo_cleans_up(state_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "demo.log"
    demo = _demo(state_dir, output, "--load-seconds", "60")
    deadline = time.monotonic() + LIMIT_S
    while "is Ready at" not in output.read_text():
        assert demo.poll() is None, output.read_text()
        assert time.monotonic() < deadline, output.read_text()
        time.sleep(0.05)
    demo.send_signal(signal.SIGINT)
    assert demo.wait(LIMIT_S) == 130, output.read_text()
    assert _processes_of(state_dir) == []
