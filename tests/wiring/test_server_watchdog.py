"""An engine process that stands still under the real server: who learns of it, and how it ends."""

import http.client
import os
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import openai
import pytest

from fakes import checkpoints
from fakes.api_process import HERE, Answer, ApiProcess, api_process
from kvasir_api.names import DEVICE_FAULT, EXIT_DEVICE, EXIT_WATCHDOG, REFUSAL_PREFIX, WATCHDOG
from kvasir_runtime.engine_args import XID_NOTE
from kvasir_runtime.server.process import CONTINUED_S

FAKE = (sys.executable, str(HERE / "serve_fake.py"))
ARGS = ("--max-model-len", "100000", "--kv-cache-tokens", "131072")
PATIENCE_S = 90.0
"""Much more than anything here takes on a machine with nothing else to do."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return checkpoints.write(tmp_path_factory.mktemp("models") / "endless")


@pytest.fixture
def short_folder():
    """For the socket between the processes: the path of one has 107 bytes at most."""
    with tempfile.TemporaryDirectory(prefix="kw-") as folder:
        yield folder


class EndlessStream(threading.Thread):
    """A stream of the real client that is read on a thread until it ends; chunks and error are what it got."""

    def __init__(self, server: ApiProcess) -> None:
        super().__init__(daemon=True)
        self.chunks = 0
        self.error: openai.APIError | None = None
        self._client = openai.OpenAI(base_url=server.base_url, api_key="none", max_retries=0, timeout=PATIENCE_S)
        self._stream = self._client.completions.create(model="endless", prompt=[1], max_tokens=90_000, stream=True)
        next(iter(self._stream))
        self.start()

    def run(self) -> None:
        try:
            for _ in self._stream:
                self.chunks += 1
        except openai.APIError as error:
            self.error = error

    def close(self) -> None:
        self._client.close()


class Answers(threading.Thread):
    """What the server answered, asked on a thread until it ends: with a dead engine it lives for seconds.

    pause_s: the longest time in which one of PATHS may not have been asked for.
    """

    PATHS = ("/readyz", "/livez", "/state", "/health")

    def __init__(self, server: ApiProcess) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._answers: list[tuple[str, Answer]] = []
        self._rounds: list[float] = []
        self.start()

    def run(self) -> None:
        try:
            while True:
                self._rounds.append(time.monotonic())
                for path in self.PATHS:
                    self._answers.append((path, self._server.ask(path, ops=path != "/health")))
                time.sleep(0.01)
        except (OSError, http.client.HTTPException):
            self._rounds.append(time.monotonic())

    @property
    def pause_s(self) -> float:
        rounds = self._rounds
        return max(after - before for before, after in zip(rounds, rounds[2:] or rounds[1:], strict=False))

    def of(self, path: str, status: int) -> list[Any]:
        """Documents with this status so far, oldest first."""
        return [answer.json for asked, answer in list(self._answers) if (asked, answer.status) == (path, status)]

    @property
    def stall(self) -> bool:
        """Whether a stalled engine was seen at every port."""
        unready = [found for found in self.of("/readyz", 503) if (found["ready"], found["phase"]) == (False, "ready")]
        states = [state for state in self.of("/state", 200) if state["stalled_s"]]
        return (
            any(found["reason"].startswith("EngineStalled: the engine has been silent for ") for found in unready)
            and any(state["message"].startswith("EngineStalled") for state in states)
            and bool(self.of("/health", 503))
        )

    @property
    def death(self) -> bool:
        """Whether it was seen that nothing is expected of the engine any more."""
        dead = self.of("/livez", 503)
        return any(found["alive"] is False and found["reason"].startswith(WATCHDOG) for found in dead)


def _readyz(server: ApiProcess, status: int):
    return server.until(f"{status} of readyz", lambda: _with_status(server, "/readyz", status), PATIENCE_S)


def _with_status(server: ApiProcess, path: str, status: int):
    answer = server.ask(path, ops=True)
    return answer if answer.status == status else None


@pytest.mark.parametrize(
    ("terminated", "xid", "code", "words"),
    [
        (False, None, EXIT_WATCHDOG, WATCHDOG),
        (True, 79, EXIT_DEVICE, f"{DEVICE_FAULT}Xid 79 (the GPU has fallen off the bus): {WATCHDOG}"),
    ],
    ids=["while it serves", "while it drains, for a lost device"],
)
def test_an_engine_that_stands_still_is_found_out_and_its_streams_end_at_once(
    model, short_folder, terminated, xid, code, words
):
    """What is not seen is looked for again where this process may have slept through it."""
    while True:
        seen = stood_still(model, short_folder, terminated, xid, code, words)
        if seen.stall and seen.death:
            break
        assert seen.pause_s >= CONTINUED_S


def stood_still(model, short_folder, terminated, xid, code, words) -> Answers:
    """What a server answered whose engine was stopped, once it has ended."""
    args, env = ("--watchdog-timeout", "1", "--drain-timeout", "600"), {"TMPDIR": short_folder}
    with api_process(model, *ARGS, *args, command=FAKE, env=env) as server:
        if xid is not None:
            (engine_folder,) = Path(short_folder).glob("kvasir-*")
            (engine_folder / XID_NOTE).write_text(f"{time.monotonic()} {xid}")
        stream, engine, answers = EndlessStream(server), server.engine_pid, Answers(server)
        os.kill(engine, signal.SIGSTOP)
        server.until("the stall to show", lambda: answers.stall or not answers.is_alive(), PATIENCE_S)
        if terminated:
            server.signal()
        stream.join(PATIENCE_S)
        assert stream.error is not None
        assert f"{words}the engine has been silent for" in str(stream.error)
        assert server.process.wait(PATIENCE_S) == code, "a dead engine is not drained"
        answers.join(PATIENCE_S)
        (line,) = [line for line in server.output().splitlines() if line.startswith(REFUSAL_PREFIX)]
        assert line.startswith(f"{REFUSAL_PREFIX}{words}the engine has been silent for")
        assert not Path(f"/proc/{engine}").exists()
        stream.close()
    return answers


def test_an_engine_that_goes_on_is_ready_again_and_no_stream_is_lost(model):
    with api_process(model, *ARGS, "--watchdog-timeout", "0", command=FAKE) as server:
        stream, engine = EndlessStream(server), server.engine_pid
        os.kill(engine, signal.SIGSTOP)
        _readyz(server, 503)
        assert server.ask("/livez", ops=True).status == 200
        os.kill(engine, signal.SIGCONT)
        _readyz(server, 200)
        seen = stream.chunks
        server.until("the stream to go on", lambda: stream.chunks > seen, PATIENCE_S)
        assert stream.error is None
        assert server.state()["stalled_s"] == 0
        assert server.state()["message"] == ""
        stream.close()
