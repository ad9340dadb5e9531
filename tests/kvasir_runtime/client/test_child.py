"""The engine process is begun early, told later, and never left behind."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from kvasir_runtime.client.child import EngineChild

TELL = "import sys; open(sys.argv[1], 'w').write(sys.stdin.readline())"
SLEEP = "import sys; sys.stdin.read()"


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_what_was_begun_is_told_what_to_serve(tmp_path: Path) -> None:
    child = EngineChild((sys.executable, "-c", TELL, str(tmp_path / "told")))
    child.begin()
    begun = child.pid
    await child.start("/models/m", {"port": 1})
    assert child.pid == begun
    assert child.began_s > 0
    assert await child.wait() == "the engine process ended with code 0"
    told = json.loads((tmp_path / "told").read_text())
    assert told == {"address": child.address, "model": "/models/m", "options": {"port": 1}}
    await child.stop()


async def test_start_alone_begins_it(tmp_path: Path) -> None:
    child = EngineChild((sys.executable, "-c", TELL, str(tmp_path / "told")))
    await child.start("m", {})
    await child.wait()
    assert (tmp_path / "told").exists()
    await child.stop()


@pytest.mark.parametrize("at_once", [False, True])
async def test_stop_ends_it_and_its_directory(at_once: bool) -> None:
    child = EngineChild((sys.executable, "-c", SLEEP))
    folder = Path(child.address.removeprefix("ipc://")).parent
    await child.start("m", {})
    waiting = asyncio.create_task(child.wait())
    await asyncio.sleep(0)
    await child.stop(at_once=at_once)
    assert await waiting == f"the engine process was killed by {'SIGKILL' if at_once else 'SIGTERM'}"
    assert not is_running(child.pid)
    assert not folder.exists()
    await child.stop()


def test_abandoned_it_ends_without_a_loop() -> None:
    child = EngineChild((sys.executable, "-c", SLEEP))
    folder = Path(child.address.removeprefix("ipc://")).parent
    child.begin()
    child.abandon()
    child.abandon()
    assert not is_running(child.pid)
    assert not folder.exists()


async def test_one_that_died_before_it_was_told_is_said_to_have_ended() -> None:
    child = EngineChild((sys.executable, "-c", "raise SystemExit(3)"))
    child.begin()
    assert await child.wait() == "the engine process ended with code 3"
    await child.start("m", {})
    await child.stop()


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGSEGV, "SIGSEGV"), (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}")]
)
async def test_any_signal_that_kills_it_is_told(number: int, name: str) -> None:
    child = EngineChild((sys.executable, "-c", SLEEP))
    await child.start("m", {})
    os.kill(child.pid, number)
    assert await child.wait() == f"the engine process was killed by {name}"
    await child.stop()
