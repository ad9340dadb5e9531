"""Drives the real engine in this process: the loop, the scheduler and the runner that serve, with a script for clients.

No step is made here. A script says what clients send and hears what the engine sends them, with the time when it did;
the depth of plans in flight, graphs and all else are what `kvasir serve` has on this device.
"""

import gc
import itertools
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

import torch

from bench.gpu.sizes import Sizes
from kvasir_api.options import ServeOptions
from kvasir_runtime.engine.client_socket import ClientSocket
from kvasir_runtime.engine.interfaces import Runner
from kvasir_runtime.engine.start import StartupClients, start_engine
from kvasir_runtime.runner.startup.build import build
from kvasir_runtime.wire import (
    Abort,
    EngineRequest,
    FromEngine,
    Hello,
    SamplingConfig,
    Shutdown,
    StepOutputs,
    Submit,
    ToEngine,
)

CLIENT: Final = b"bench"
Build = Callable[[ServeOptions, Callable[[Any], None]], Runner]
_names = itertools.count()


class Script(Protocol):
    """One load. Both are called in the engine's own thread, so they must be quick and must not raise.

    wrong: "" or why it makes no sense to go on.
    """

    wrong: str

    def begin(self) -> Sequence[ToEngine]:
        """What is sent first."""

    def heard(self, step: StepOutputs, now: float) -> Sequence[ToEngine] | None:
        """What is sent after a step; None ends the load, whatever still runs."""


class Seat:
    """The engine's socket, with one client on it."""

    def __init__(self, script: Script, give_up: float, clock: Callable[[], float]) -> None:
        self._script, self._give_up, self._clock = script, give_up, clock
        self._outbox: deque[ToEngine] = deque()
        self._running: set[str] = set()
        self._ended = self._open = False
        self.late = False

    def open(self) -> None:
        """From now on the script is heard."""
        self._open = True
        self._send((Hello(), *self._script.begin()))

    def receive(self, timeout_s: float) -> Sequence[tuple[bytes, ToEngine]]:
        """The engine asks with a timeout only while it is idle: then it may stop, for nothing is in flight."""
        if not self._open:
            return ()
        if self._clock() > self._give_up and not self._ended:
            self.late = True
            self._end()
        if self._ended and timeout_s > 0 and not self._outbox:
            return [(CLIENT, Shutdown())]
        found = [(CLIENT, message) for message in self._outbox]
        self._outbox.clear()
        return found

    def send(self, client: bytes, message: FromEngine) -> bool:
        """Steps go to the script until it has enough."""
        now = self._clock()
        if isinstance(message, StepOutputs):
            self._running -= {event.request_id for event in message.outputs if event.finish_reason is not None}
            if not self._ended and (message.outputs or message.computed_tokens):
                answer = self._script.heard(message, now)
                if answer is None:
                    self._end()
                else:
                    self._send(answer)
        return True

    def _send(self, messages: Sequence[ToEngine]) -> None:
        self._outbox.extend(messages)
        self._running |= {message.request.request_id for message in messages if isinstance(message, Submit)}

    def _end(self) -> None:
        self._ended = True
        self._outbox.extend(Abort(request_id) for request_id in sorted(self._running))


class Late(Exception):
    """A load took longer than there was time."""


class Served:
    """A model that is loaded once and serves one load after another, each by an engine of its own."""

    def __init__(self, model: Path, sizes: Sizes, device: str, build: Build = build, **options: Any) -> None:
        """options: fields of ServeOptions, over those of the sizes. build: makes the runner; tests bring their own."""
        given: dict[str, Any] = {"max_model_len": sizes.max_model_len, "dtype": sizes.dtype, "device": device}
        given["startup_cache"] = str(model.parent / "plans-in-process")
        if device == "cpu":
            given["kv_cache_tokens"] = 4096
        self.options = ServeOptions.model_validate({"model": str(model), **given, **options})
        self.runner: Runner = build(self.options, lambda _: None)

    def run(self, script: Script, left_s: float, clock: Callable[[], float] = time.perf_counter) -> None:
        """Until the script has enough. Raises Late when that takes more than left_s."""
        seat = Seat(script, clock() + left_s, clock)
        socket = cast("ClientSocket", seat)
        engine = start_engine(self.options, lambda *_: cast("Any", self.runner), socket, StartupClients(socket))
        gc.collect()
        gc.freeze()  # as the engine's own process does
        seat.open()
        try:
            engine.run()
        finally:
            gc.unfreeze()
        if script.wrong:
            raise RuntimeError(script.wrong)
        if seat.late:
            raise Late(f"not done within {left_s:.0f} s")

    def close(self) -> None:
        """Give the device's memory back, before another model is loaded."""
        del self.runner
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def request(prompt: Sequence[int], max_tokens: int) -> EngineRequest:
    """A greedy one of full length, under a name of its own."""
    sampling = SamplingConfig(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return EngineRequest(request_id=f"bench-{next(_names)}", prompt=tuple(prompt), sampling=sampling)


def prompt(tokens: int, vocab: int, seed: object) -> tuple[int, ...]:
    """Ids that share no prefix with those of another seed."""
    return tuple(random.Random(str(seed)).choices(range(3, vocab), k=tokens))
