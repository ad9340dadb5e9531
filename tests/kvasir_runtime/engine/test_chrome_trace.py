"""The profile adds up what it was told, writes a trace that viewers read, and hears of every phase of a step."""

import json
from pathlib import Path

import torch

from fakes import checkpoints
from fakes.by_hand import Hand, Stream, runner_of
from fakes.checkpoints import Shape
from fakes.clients import CLIENT, FakeClients
from fakes.runner import FakeRunner
from fakes.serving import request
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.engine.chrome_trace import ChromeTraceProfiler
from kvasir_runtime.engine.loop import Engine
from kvasir_runtime.kernels.cpu.library import library
from kvasir_runtime.kernels.cpu.ops import cpu_ops
from kvasir_runtime.kernels.cpu.step import KINDS
from kvasir_runtime.step_profiler import StepProfiler
from kvasir_runtime.wire import Hello, Shutdown, Submit


class Heard(StepProfiler):
    """Remembers names."""

    def __init__(self) -> None:
        self.laps: list[str] = []
        self.parted: set[str] = set()
        self.closed = False

    @property
    def wants_parts(self) -> bool:
        return True

    def lap(self, name: str) -> None:
        self.laps.append(name)

    def parts(self, weights) -> None:
        self.parted |= {name for name, weight in weights.items() if weight}

    def close(self) -> None:
        self.closed = True


def events(path: Path) -> list[dict[str, object]]:
    text = path.read_text()
    return json.loads(text if text.rstrip().endswith("]") else text + "]")


def test_table_and_trace_add_up(tmp_path: Path) -> None:
    now, said = [100.0], list[str]()
    profile = ChromeTraceProfiler(tmp_path / "p.json", clock=lambda: now[0], say=said.append)
    for _ in range(2):
        now[0] += 5.0
        profile.start()  # idle until here
        for name, took in (("plan", 0.001), ("forward", 0.006), ("send", 0.001)):
            now[0] += took
            profile.lap(name)
            if name == "forward":
                profile.parts({"qkv": 100, "down": 200})
        profile.step(32, 4)
    assert len(said) == 1  # ten seconds have passed
    assert said[0].splitlines() == [
        "2 steps, 32.0 tokens and 8.000 ms each",
        "plan                1.000 ms   12.5 %",
        "forward             6.000 ms   75.0 %",
        "  qkv               2.000 ms   25.0 %",
        "  down              4.000 ms   50.0 %",
        "send                1.000 ms   12.5 %",
    ]
    assert len(events(tmp_path / "p.json")) == 13  # readable before its end
    profile.close()
    spans = [event for event in events(tmp_path / "p.json") if event["ph"] == "X"]
    assert [(span["name"], span["tid"], span["ts"], span["dur"]) for span in spans[:4]] == [
        ("plan", 1, 5e6, 1000.0),
        ("forward", 1, 5e6 + 1000, 6000.0),
        ("qkv", 2, 5e6 + 1000, 2000.0),
        ("down", 2, 5e6 + 3000, 4000.0),
    ]
    assert len(spans) == 10
    assert len(said) == 1  # nothing new to say


def test_runner_tells_what_a_step_goes_into(tmp_path: Path) -> None:
    folder = checkpoints.write(tmp_path / "m", Shape(dtype=torch.bfloat16))
    runner, heard = runner_of(folder, ops=cpu_ops(), dtype=torch.bfloat16), Heard()
    runner.use_profiler(heard)
    Hand(runner).run([Stream(prompt=(5, 6, 7))], 2)
    whole = library() is not None  # which draws greedy rows as well
    assert heard.laps == (["batch", "forward"] if whole else ["batch", "forward", "head+draw"]) * 2
    parts = set(KINDS) - {"router", "experts"}  # which this model does not have
    assert heard.parted == (parts if whole else set())


def test_loop_tells_the_rest() -> None:
    heard, runner = Heard(), FakeRunner()
    limits = Limits(num_blocks=64, block_size=4, max_batch_tokens=32, max_sequences=8, max_model_len=64)
    clients = FakeClients([[(CLIENT, Hello()), (CLIENT, Submit(request("a", (1, 2, 3))))], [], [(CLIENT, Shutdown())]])
    Engine(
        scheduler=Scheduler(limits),
        runner=runner,
        clients=clients,
        state=RuntimeState(model="m", phase="ready"),
        profiler=heard,
    ).run()
    first, *each = heard.laps[:8]
    assert first == "receive"
    # Told of while the next step is computed.
    assert each == ["plan", "send", "results", "receive", "commit", "plan", "send"]
    assert heard.closed
