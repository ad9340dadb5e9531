"""A lock that one process holds at a time."""

import subprocess
import sys
import threading

import pytest

from kvasir_local import locks
from kvasir_local.progress import SilentProgress

HOLDER = """
import sys
from pathlib import Path
from kvasir_local import locks
from kvasir_local.progress import SilentProgress
with locks.held(Path(sys.argv[1]), progress=SilentProgress(), waiting=""):
    print("held", flush=True)
    sys.stdin.read()
"""


class Told(SilentProgress):
    def __init__(self):
        self.first = threading.Event()
        self.text = ""

    def waiting(self, text):
        self.text = text
        self.first.set()


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock, and the lock."""
    lock = tmp_path / "lock"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process, lock
    process.kill()
    process.communicate()


def test_a_lock_of_another_process_is_not_waited_for_longer_than_said(holder):
    _, lock = holder
    with (
        pytest.raises(TimeoutError, match=r"/lock is held by another process"),
        locks.held(lock, progress=SilentProgress(), waiting="", timeout_s=0.0),
    ):
        raise AssertionError("it is held")


def test_a_lock_is_free_once_its_holder_was_killed(holder):
    process, lock = holder
    told, got = Told(), threading.Event()

    def wait():
        with locks.held(lock, progress=told, waiting="somebody builds"):
            got.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    assert told.first.wait(60)
    assert not got.is_set()
    process.kill()
    waiter.join(60)
    assert got.is_set()
    assert told.text.startswith("somebody builds… ")


def test_a_lock_is_free_again_after_its_context(tmp_path):
    for _ in range(2):
        with locks.held(tmp_path / "lock", progress=SilentProgress(), waiting="", timeout_s=0.0):
            pass
