"""The engine's loop: hear the clients, launch plans, collect results, tell everybody what a step did.

A shell around the scheduler: it reads the clock and moves messages. Wired by engine_main. While there is work it never
waits for clients, only for the runner; when idle it waits for clients and speaks about once a second.
"""

import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import msgspec

from kvasir_api.state import RuntimeState
from kvasir_runtime.core.plan import StepPlan, StepResults
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.engine.interfaces import Clients, Runner
from kvasir_runtime.engine.trace import (
    FailureRecord,
    MessageRecord,
    NoTrace,
    PlanRecord,
    ResultsRecord,
    StartRecord,
    Trace,
)
from kvasir_runtime.step_profiler import StepProfiler
from kvasir_runtime.wire import (
    Abort,
    Drain,
    EngineOutput,
    Hello,
    Inject,
    Ready,
    Shutdown,
    StepOutputs,
    Submit,
    ToEngine,
)

LOG = logging.getLogger(__name__)
HEARTBEAT_S = 1.0
PARKED_S = 0.005
"""How long an idle engine waits for clients while a grammar is being compiled."""
MAX_FAILED_STEPS = 3
"""Failed steps in a row after which the device, and not one request, must be what is broken."""


class EngineFatalError(Exception):
    """The engine cannot go on; str() is one line."""


class Engine:
    """Serves until stop() or Shutdown. depth: plans that may be in flight, 1 on a CPU and 2 on CUDA.

    state: what `/state` says besides the scheduler's numbers. ready: told to every client that says Hello.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        clients: Clients,
        ready: Ready,
        state: RuntimeState,
        depth: int = 1,
        clock: Callable[[], float] = time.monotonic,
        trace: Trace | None = None,
        profiler: StepProfiler | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clients = clients
        self._ready = ready
        self._state = state
        self._depth = depth
        self._clock = clock
        self._trace = NoTrace() if trace is None else trace
        self._profiler = StepProfiler() if profiler is None else profiler
        self._flight: deque[tuple[StepPlan, Any, float]] = deque()
        self._present: dict[bytes, None] = {}
        self._owners: dict[str, bytes] = {}
        self._followers: dict[str, tuple[str, ...]] = {}
        self._grammars = runner.grammars
        self._parked: dict[str, Submit] = {}
        self._submitted: dict[str, float] = {}
        self._queued: dict[str, float] = {}
        self._computed_tokens = 0
        self._outbox: defaultdict[bytes, list[EngineOutput]] = defaultdict(list)
        self._collected_at = 0.0
        self._sent_at = 0.0
        self._failed_steps = 0
        self._stopping = threading.Event()
        self._trace.add(StartRecord(scheduler.limits))

    @property
    def present(self) -> list[bytes]:
        """Clients that said hello and are not gone."""
        return list(self._present)

    def stop(self) -> None:
        """Leave the loop after the step that is being computed. May be called by a signal handler."""
        self._stopping.set()

    def greet(self, client: bytes) -> None:
        """A client that introduced itself: it gets the facts, and from now on every step."""
        self._present[client] = None
        self._send(client, self._ready)
        self._sent_at = 0.0

    def run(self) -> None:
        """Serve. Raises EngineError when the runner fails again and again."""
        try:
            self._serve()
        finally:
            self._profiler.close()

    def _serve(self) -> None:
        while True:
            collected = self._collect()
            news = not self._stopping.is_set() and self._receive(idle=collected is None)
            if collected is not None:
                self._commit(*collected)
            news |= self._submit_compiled()
            if not self._stopping.is_set():
                self._launch()
            # What a step gave is told while the next one is computed.
            unsent = collected is not None or self._outbox or (news and not self._flight)
            if unsent or self._clock() >= self._sent_at + HEARTBEAT_S:
                self._send_outputs()
                self._profiler.lap("send")
            if self._stopping.is_set():
                return

    def _receive(self, *, idle: bool) -> bool:
        """Hear the clients, and wait for them where there is nothing else to do. Whether one said something."""
        busy = not idle or self._outbox or self._scheduler.has_work or self._flight
        idle_s = PARKED_S if self._parked else max(0.0, self._sent_at + HEARTBEAT_S - self._clock())
        heard = self._clients.receive(0.0 if busy else idle_s)
        if not busy:
            self._profiler.start()
        for client, message in heard:
            self._handle(client, message)
        self._profiler.lap("receive")
        return bool(heard)

    def _handle(self, client: bytes, message: ToEngine) -> None:
        match message:
            case Hello():
                self.greet(client)
            case Submit(request) if request.sampling.grammar is None or self._grammars is None:
                self._submit(client, message)
            case Submit():
                self._await_grammar(client, message)
            case Abort():
                self._abort(message)
            case Inject(request_id, token_ids):
                self._trace.add(MessageRecord(self._clock(), message))
                self._scheduler.inject(request_id, token_ids)
            case Drain():
                self._state = msgspec.structs.replace(self._state, phase="draining")
            case Shutdown():
                self.stop()

    def _await_grammar(self, client: bytes, message: Submit) -> None:
        """A request whose grammar is compiled first; those who come after it need not wait for that."""
        request = message.request
        assert self._grammars is not None
        assert request.sampling.grammar is not None
        if request.request_id in self._owners:
            why = f"a request with the id {request.request_id} has not ended yet"
            self._outbox[client].append(EngineOutput(request_id=request.request_id, finish_reason="error", message=why))
            return
        self._grammars.compile(request.request_id, request.sampling.grammar)
        self._parked[request.request_id] = message
        self._owners[request.request_id] = client
        self._submitted[request.request_id] = self._clock()

    def _submit_compiled(self) -> bool:
        """Queue the requests whose grammars are ready. Whether there were any."""
        before = len(self._parked)
        for request_id, message in list(self._parked.items()):
            assert self._grammars is not None
            why = self._grammars.ready(request_id)
            if why is None:
                continue
            del self._parked[request_id]
            client, submitted = self._owners[request_id], self._submitted[request_id]
            if why:
                self._post((EngineOutput(request_id=request_id, finish_reason="error", message=why),))
            elif self._submit(client, message):
                self._submitted[request_id] = submitted
            else:
                self._forget(request_id)
        return len(self._parked) < before

    def _submit(self, client: bytes, message: Submit) -> bool:
        """Queue a request; False when it is refused."""
        now = self._clock()
        self._trace.add(MessageRecord(now, message))
        refused = self._scheduler.submit(message.request, now)
        if refused is None:
            self._owners[message.request.request_id] = client
            if message.request.beam is not None:
                self._followers[message.request.request_id] = message.request.beam.answers[1:]
                self._owners.update(dict.fromkeys(message.request.beam.answers, client))
            self._submitted[message.request.request_id] = now
        else:
            self._outbox[client].append(refused)
        return refused is None

    def _abort(self, message: Abort) -> None:
        now = self._clock()
        self._parked.pop(message.request_id, None)
        self._trace.add(MessageRecord(now, message))
        self._scheduler.abort(message.request_id, now, success=message.reason == "stop")
        self._forget(message.request_id)

    def _forget(self, request_id: str) -> None:
        """A request ended, and with it the ids that more answers of it are reported under."""
        self._submitted.pop(request_id, None)
        self._queued.pop(request_id, None)
        self._owners.pop(request_id, None)
        if self._grammars is not None:
            self._grammars.drop(request_id)
        for follower in self._followers.pop(request_id, ()):
            self._owners.pop(follower, None)

    def _collect(self) -> tuple[StepPlan, StepResults, float] | None:
        """The oldest plan in flight, its results and when it was launched. None when there is none, or it failed."""
        if not self._flight:
            return None
        plan, handle, launched_at = self._flight.popleft()
        try:
            results = self._runner.collect(handle)
        except Exception as error:  # noqa: BLE001 - whatever a runner raises ends requests, not silently the engine
            self._break(error)
            return None
        self._profiler.lap("results")
        return plan, results, launched_at

    def _commit(self, plan: StepPlan, results: StepResults, launched_at: float) -> None:
        """Take in what a plan gave. An abort that came meanwhile was heard before, so nothing follows it."""
        now = self._clock()
        self._trace.add(ResultsRecord(now, results))
        self._post(self._scheduler.commit(results, now))
        self._scheduler.throughput.observe(plan, now - max(launched_at, self._collected_at))
        self._collected_at = now
        self._computed_tokens += plan.num_tokens
        self._failed_steps = 0
        self._profiler.lap("commit")
        self._profiler.step(plan.num_tokens, len(plan.chunks))

    def _launch(self) -> None:
        """Launch until depth plans are in flight."""
        try:
            while len(self._flight) < self._depth and self._scheduler.has_work and self._launch_one():
                pass
        except Exception as error:  # noqa: BLE001 - as in _collect
            self._break(error)
            return
        if not self._flight and self._scheduler.has_work:
            raise EngineFatalError("requests are left that the scheduler does not plan")

    def _launch_one(self) -> bool:
        """False where nothing can be planned before something is collected."""
        now = self._clock()
        plan = self._scheduler.plan(now)
        self._trace.add(PlanRecord(now, plan))
        if plan is None:
            return False
        for join in plan.joins:
            submitted = self._submitted.pop(join.request_id, None)
            if submitted is not None:  # else it was preempted and comes back
                self._queued[join.request_id] = now - submitted
        self._profiler.lap("plan")
        self._flight.append((plan, self._runner.launch(plan), now))
        return True

    def _break(self, error: Exception) -> None:
        """A step failed: everybody who has a row is told, those who wait are tried again."""
        LOG.error("a step failed", exc_info=error)
        self._failed_steps += 1
        while self._flight:
            _, handle, _ = self._flight.popleft()
            try:
                self._runner.collect(handle)
            except Exception as later:  # noqa: BLE001 - its requests are failed with the others
                LOG.warning("a later step failed too: %s", one_line(later))
        message = f"the engine failed to compute a step: {one_line(error)}"
        now = self._clock()
        self._trace.add(FailureRecord(now, message))
        self._post(self._scheduler.fail_running(message, now))
        if self._failed_steps >= MAX_FAILED_STEPS:
            self._send_outputs()
            raise EngineFatalError(f"{self._failed_steps} steps failed in a row, the last with {one_line(error)}")

    def _post(self, events: tuple[EngineOutput, ...]) -> None:
        for event in events:
            queue_s = self._queued.pop(event.request_id, None)
            if queue_s is not None:
                event = msgspec.structs.replace(event, queue_s=queue_s)
            client = self._owners.get(event.request_id)
            if client is not None:
                self._outbox[client].append(event)
        for event in events:
            if event.finish_reason is not None:
                self._forget(event.request_id)

    def _send_outputs(self) -> None:
        """One message to every client: its events and the state after the step."""
        state = self._scheduler.report(self._state)
        outbox, self._outbox = self._outbox, defaultdict(list)
        for client in {**self._present, **dict.fromkeys(outbox)}:
            outputs = tuple(outbox.get(client, ()))
            self._send(client, StepOutputs(outputs=outputs, state=state, computed_tokens=self._computed_tokens))
        self._computed_tokens = 0
        self._sent_at = self._clock()

    def _send(self, client: bytes, message: Ready | StepOutputs) -> None:
        if not self._clients.send(client, message):
            self._leave(client)

    def _leave(self, client: bytes) -> None:
        """A client is gone without a word: nobody reads its answers."""
        self._present.pop(client, None)
        self._outbox.pop(client, None)
        for request_id in [request_id for request_id, owner in self._owners.items() if owner == client]:
            self._abort(Abort(request_id))


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
