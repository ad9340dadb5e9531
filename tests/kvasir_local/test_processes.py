"""Processes are recognised and ended, whatever happened to their pid."""

import os
import signal
import sys
import time

import pytest

from kvasir_local import processes
from kvasir_local.processes import ProcessIdentity

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)",
]


@pytest.fixture
def started(tmp_path):
    found = []

    def start(command, **environment):
        process = processes.start(command, log=tmp_path / "log", environment={**os.environ, **environment})
        found.append(process)
        return process

    yield start
    processes.stop(found, grace_s=0)


def until(condition, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_process_lives_until_it_is_stopped(started):
    process = started(SLEEP)
    assert processes.alive(process)
    assert processes.stop([process], grace_s=60) == []
    assert not processes.alive(process)


def test_one_that_ignores_sigterm_is_killed(started, tmp_path):
    process = started(STUBBORN)
    until(lambda: processes.tail(tmp_path / "log").strip() == "deaf")
    assert processes.stop([process], grace_s=0.05) == [process]
    assert not processes.alive(process)


def test_a_reused_pid_is_another_process(started):
    process = started(SLEEP)
    earlier = ProcessIdentity(pid=process.pid, start_ticks=process.start_ticks - 1)
    assert not processes.alive(earlier)
    assert processes.stop([earlier], grace_s=0) == []
    assert processes.alive(process)


def test_a_zombie_is_dead(started):
    process = started(SLEEP)
    os.kill(process.pid, signal.SIGKILL)
    until(lambda: not processes.alive(process))
    assert processes.stop([process], grace_s=1) == []


def test_a_program_that_ends_at_once_is_dead(started):
    process = started([sys.executable, "-c", ""])
    until(lambda: not processes.alive(process))


def test_processes_are_found_by_their_mark(started, tmp_path):
    ours = started(SLEEP, **{processes.STATE_DIR_VARIABLE: str(tmp_path)})
    started(SLEEP, **{processes.STATE_DIR_VARIABLE: f"{tmp_path}2"})
    until(lambda: processes.marked(tmp_path) == [ours])


def test_a_process_does_not_share_our_terminal(started):
    assert os.getsid(started(SLEEP).pid) != os.getsid(0)


def test_the_tail_of_a_log_is_short(tmp_path):
    log = tmp_path / "log"
    log.write_text("".join(f"line {number}\n" for number in range(10_000)))
    assert processes.tail(log, lines=2) == "    line 9998\n    line 9999"
    assert processes.tail(tmp_path / "absent") == ""
