"""The engine process is begun early, told later, and never left behind."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from kvasir_runtime.client.engine_process import EngineProcess
from kvasir_runtime.engine_args import XID_NOTE

TELL = "import sys; open(sys.argv[1], 'w').write(sys.stdin.readline())"
SLEEP = "import sys; sys.stdin.read()"


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_what_was_begun_is_told_what_to_serve(tmp_path: Path) -> None:
    engine = EngineProcess((sys.executable, "-c", TELL, str(tmp_path / "told")))
    engine.begin()
    begun = engine.pid
    await engine.start("/models/m", {"port": 1})
    assert engine.pid == begun
    assert engine.began_s > 0
    assert await engine.wait() == "the engine process ended with code 0"
    told = json.loads((tmp_path / "told").read_text())
    assert told == {"address": engine.address, "model": "/models/m", "options": {"port": 1}}
    await engine.stop()


async def test_start_alone_begins_it(tmp_path: Path) -> None:
    engine = EngineProcess((sys.executable, "-c", TELL, str(tmp_path / "told")))
    await engine.start("m", {})
    await engine.wait()
    assert (tmp_path / "told").exists()
    await engine.stop()


@pytest.mark.parametrize("at_once", [False, True])
async def test_stop_ends_it_and_its_directory(at_once: bool) -> None:
    engine = EngineProcess((sys.executable, "-c", SLEEP))
    folder = Path(engine.address.removeprefix("ipc://")).parent
    await engine.start("m", {})
    waiting = asyncio.create_task(engine.wait())
    await asyncio.sleep(0)
    await engine.stop(at_once=at_once)
    assert await waiting == f"the engine process was killed by {'SIGKILL' if at_once else 'SIGTERM'}"
    assert not is_running(engine.pid)
    assert not folder.exists()
    await engine.stop()


@pytest.mark.parametrize(
    ("noted", "want"), [("50.5 79", 79), ("49.0 79", None), ("", None), ("50.5", None), (None, None)]
)
def test_a_fault_of_the_device_is_read_from_its_note(noted: str | None, want: int | None) -> None:
    engine = EngineProcess()
    note = Path(engine.address.removeprefix("ipc://")).with_name(XID_NOTE)
    if noted is not None:
        note.write_text(noted)
    found = engine.xid_since(50.0)
    engine.abandon()
    assert found == want


def test_abandoned_it_ends_without_a_loop() -> None:
    engine = EngineProcess((sys.executable, "-c", SLEEP))
    folder = Path(engine.address.removeprefix("ipc://")).parent
    engine.begin()
    engine.abandon()
    engine.abandon()
    assert not is_running(engine.pid)
    assert not folder.exists()


async def test_one_that_died_before_it_was_told_is_said_to_have_ended() -> None:
    engine = EngineProcess((sys.executable, "-c", "raise SystemExit(3)"))
    engine.begin()
    assert await engine.wait() == "the engine process ended with code 3"
    await engine.start("m", {})
    await engine.stop()


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGSEGV, "SIGSEGV"), (signal.SIGRTMIN + 1, f"signal {signal.SIGRTMIN + 1}")]
)
async def test_any_signal_that_kills_it_is_told(number: int, name: str) -> None:
    engine = EngineProcess((sys.executable, "-c", SLEEP))
    await engine.start("m", {})
    os.kill(engine.pid, number)
    assert await engine.wait() == f"the engine process was killed by {name}"
    await engine.stop()
