"""The engine as a process behind its real socket, with a fake runner: start, answers, failures, end."""

import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec
import pytest
import zmq

from fakes.serving import request
from kvasir_runtime import wire
from kvasir_runtime.engine.replay import replay
from kvasir_runtime.engine.trace import records
from kvasir_runtime.engine_args import EngineArgs
from kvasir_runtime.engine_reports import Progress

DEADLINE_S = 60.0
TESTS = Path(__file__).parents[2]


class Process:
    """An engine process and one client of it."""

    def __init__(self, model, folder, **options):
        self.folder = folder
        self.address = f"ipc://{folder}/engine"
        environment = {**os.environ, "PYTHONPATH": str(TESTS)}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fakes.engine_process"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            bufsize=0,
        )
        launch = EngineArgs(address=self.address, model=model, options={"log_format": "text", **options})
        self.process.stdin.write(msgspec.json.encode(launch) + b"\n")
        self.process.stdin.flush()
        self.context = zmq.Context()
        self.sockets = []
        self.socket = self.client()

    def client(self):
        socket = self.context.socket(zmq.DEALER)
        self.sockets.append(socket)
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.RECONNECT_IVL, 10)
        socket.connect(self.address)
        self.send(wire.Hello(), socket)
        return socket

    def send(self, message, socket=None):
        (socket or self.socket).send(msgspec.msgpack.encode(message))

    def receive(self, socket=None):
        socket = socket or self.socket
        assert socket.poll(DEADLINE_S * 1000), f"the engine is silent: {self.process.poll()}"
        return msgspec.msgpack.decode(socket.recv(), type=wire.FromEngine)

    def until(self, kind, socket=None):
        messages = []
        while not messages or not isinstance(messages[-1], kind):
            messages.append(self.receive(socket))
        return messages

    def answer(self, *names, socket=None):
        tokens, open_names, steps = {name: [] for name in names}, set(names), []
        while open_names:
            step = self.receive(socket)
            assert isinstance(step, wire.StepOutputs)
            steps.append(step)
            for event in step.outputs:
                tokens[event.request_id] += event.token_ids
                if event.finish_reason is not None:
                    open_names.discard(event.request_id)
        return tokens, steps

    def wait(self):
        return self.process.wait(DEADLINE_S)

    def close(self):
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stderr):
            pipe.close()
        self.process.wait(DEADLINE_S)
        self.context.destroy(linger=0)


@pytest.fixture
def start():
    opened = []
    with tempfile.TemporaryDirectory(prefix="kv-") as folder:

        def starter(model="good", **options):
            opened.append(Process(model, folder, **options))
            return opened[-1]

        yield starter
        for process in opened:
            process.close()


def test_progress_then_facts_then_answers_then_a_clean_end(start, tmp_path):
    engine = start("slow", kv_cache_tokens=1024, block_size=8, max_sequences=4, trace=str(tmp_path / "trace"))
    *before, ready = engine.until(wire.Ready)
    fractions = [message.progress_fraction for message in before]
    assert all(isinstance(message, Progress) for message in before)
    assert fractions == sorted(fractions)
    facts = ready.facts
    assert (facts.capacity_tokens, facts.block_size, facts.max_model_len, facts.max_sequences) == (1024, 8, 256, 4)
    for number in range(6):
        engine.send(wire.Submit(request(f"r{number}", range(1, 30), max_tokens=20)))
    tokens, steps = engine.answer(*(f"r{number}" for number in range(6)))
    assert len({tuple(item) for item in tokens.values()}) == 1
    kv = steps[-1].state.kv
    assert kv.pinned_tokens + kv.cached_tokens + kv.free_tokens == kv.capacity_tokens == 1024
    engine.send(wire.Shutdown())
    assert engine.wait() == 0
    result = replay(records(tmp_path / "trace"))
    assert result.num_plans > 5
    assert not result.differs


def test_clients_come_late_talk_nonsense_and_hear_a_heartbeat(start):
    engine = start()
    engine.until(wire.Ready)
    assert stat.S_IMODE((Path(engine.folder) / "engine").stat().st_mode) == 0o600
    late = engine.client()
    assert isinstance(engine.receive(late), wire.Ready)
    engine.socket.send(b"\xc1 noise")
    engine.send(wire.Submit(request("late", [1, 2])), late)
    tokens, _ = engine.answer("late", socket=late)
    assert tokens["late"]
    beats = [engine.receive(late) for _ in range(2)]
    assert all(isinstance(beat, wire.StepOutputs) and not beat.outputs for beat in beats)
    engine.process.send_signal(signal.SIGTERM)
    assert engine.wait() == 0


def test_an_abort_frees_the_blocks(start):
    engine = start("endless", prefix_cache=False, max_model_len=65_536, kv_cache_tokens=131_072)
    engine.until(wire.Ready)
    engine.send(wire.Submit(request("a", range(1, 50), max_tokens=60_000)))
    while not any(step.outputs for step in [engine.receive()]):
        pass
    engine.send(wire.Abort("a"))
    deadline = time.monotonic() + DEADLINE_S
    while (state := engine.receive().state).kv.pinned_tokens and time.monotonic() < deadline:
        pass
    assert (state.kv.pinned_tokens, state.running, state.totals.aborts) == (0, 0, 1)


@pytest.mark.parametrize(
    ("model", "message", "refusal"),
    [
        ("broken", "model broken: config.json is missing", True),
        ("crash", "the engine failed: RuntimeError: something nobody expected", False),
    ],
)
def test_a_model_that_cannot_be_loaded_is_one_line_and_exit_code_1(start, model, message, refusal):
    engine = start(model)
    assert engine.until(wire.EngineFailed)[-1] == wire.EngineFailed(message, refusal)
    assert engine.wait() == 1
    log = engine.process.stderr.read().decode()
    assert ("Traceback" in log) == (model == "crash")
    assert "config.json is missing" not in log, "the client says it; twice would be once too often"


def test_a_runner_that_always_fails_ends_the_process(start):
    engine = start("poison", max_sequences=1)
    engine.until(wire.Ready)
    for name in "abcd":
        engine.send(wire.Submit(request(name, [1])))
    messages = engine.until(wire.EngineFailed)
    ends = [event.request_id for step in messages if isinstance(step, wire.StepOutputs) for event in step.outputs]
    assert ends == ["a", "b", "c"]
    assert "3 steps failed in a row" in messages[-1].message
    assert engine.wait() == 1


@pytest.mark.parametrize("while_loading", [True, False])
def test_the_end_of_the_parent_is_the_end_of_the_engine(start, while_loading):
    engine = start("slow" if while_loading else "endless")
    if not while_loading:
        engine.until(wire.Ready)
        engine.send(wire.Submit(request("a", [1, 2], max_tokens=200)))
    engine.process.stdin.close()
    assert engine.wait() == 1


def told(line: bytes) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "fakes.engine_process"],
        input=line,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        timeout=DEADLINE_S,
        check=False,
    )


def test_the_end_of_the_parent_before_a_launch_document_is_the_end_without_a_word():
    ended = told(b"")
    assert (ended.returncode, ended.stderr) == (1, b"")


@pytest.mark.parametrize("line", [b"\n", b'{"address":"x","model":"m","options":{"block_size":7}}\n'])
def test_a_launch_document_that_is_not_understood(line):
    ended = told(line)
    assert ended.returncode == 1
    assert ended.stderr.startswith(b"error: the engine arguments on standard input cannot be read: ")
    assert ended.stderr.count(b"\n") == 1
