"""The engine's loop: receive messages, launch plans, collect results, send each client what a step gave.

A shell around the scheduler: it reads the clock and moves messages. Wired by engine_main. While there is work it never
waits for clients, only for the runner; when idle it waits for clients and sends a heartbeat twice a second. Each
message announces how long the next one may take.
"""

import logging
import threading
import time
from collections.abc import Callable

import msgspec

from kvasir_api.openai_errors import DRAINING
from kvasir_api.state import RuntimeState
from kvasir_runtime.core.plan import StepFailure, StepPlan, StepResults
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.step_times import UNKNOWN_S
from kvasir_runtime.engine.client_outboxes import ClientOutboxes
from kvasir_runtime.engine.interfaces import Clients, Runner
from kvasir_runtime.engine.launched_plans import LaunchedPlan, LaunchedPlans
from kvasir_runtime.engine.open_request import OpenRequest
from kvasir_runtime.engine.trace import (
    FailureRecord,
    HostRecord,
    MessageRecord,
    NoTrace,
    PlanRecord,
    ResultsRecord,
    StartRecord,
    Trace,
)
from kvasir_runtime.errors import is_out_of_memory
from kvasir_runtime.step_profiler import StepProfiler
from kvasir_runtime.wire import (
    Abort,
    Drain,
    EngineOutput,
    EngineRequest,
    Forget,
    HandBack,
    Hello,
    Inject,
    PeerKeys,
    Ready,
    Shutdown,
    StepOutputs,
    Submit,
    ToEngine,
)

LOG = logging.getLogger(__name__)
HEARTBEAT_S = 0.5
COMPILING_S = 0.005
"""How long an idle engine waits for clients while a grammar is being compiled."""
MAX_FAILED_STEPS = 3
"""Failed steps in a row after which the device, and not one request, must be what is broken."""


class EngineFatalError(Exception):
    """The engine cannot go on; str() is one line."""


class Engine:
    """Serves until stop() or Shutdown. depth: plans that may be in flight, 2 on CUDA, else one for each stage.

    state: the fields of `/state` that the scheduler does not know.
    """

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        runner: Runner,
        clients: Clients,
        state: RuntimeState,
        depth: int = 1,
        clock: Callable[[], float] = time.monotonic,
        trace: Trace | None = None,
        profiler: StepProfiler | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._clients = clients
        self._state = state
        self._depth = depth
        self._clock = clock
        self._trace = NoTrace() if trace is None else trace
        self._profiler = StepProfiler() if profiler is None else profiler
        self._in_flight = LaunchedPlans(compiles=depth > scheduler.limits.stages)
        self._computes_in_launch = scheduler.limits.stages > 1
        self._announced_s = 0.0
        self._requests: dict[str, OpenRequest] = {}
        """By each id that an output may go under."""
        self._compiling: list[OpenRequest] = []
        """Those that wait for their grammars, in order of arrival."""
        self._grammars = runner.grammars
        self._computed_tokens = 0
        self._outboxes = ClientOutboxes(clients, self._gone)
        self._sent_at = 0.0
        self._launching: StepPlan | None = None
        self._failed_steps = 0
        self._stopping = threading.Event()
        self._trace.add(StartRecord(scheduler.limits))

    @property
    def present(self) -> list[bytes]:
        """Clients that sent Hello and are not gone."""
        return self._outboxes.present

    @property
    def num_open(self) -> int:
        """Answers that have not ended."""
        return len(self._requests)

    def stop(self) -> None:
        """Leave the loop after the step that is being computed. May be called by a signal handler."""
        self._stopping.set()

    def greet(self, client: bytes) -> None:
        """A client that introduced itself gets Ready, and from now on every step."""
        self._outboxes.greet(client, Ready(self._runner.facts, self._runner.hash_salt))
        self._sent_at = 0.0

    def run(self) -> None:
        """Serve. Raises EngineFatalError when the runner fails for good, or again and again."""
        try:
            self._serve()
        finally:
            self._profiler.close()

    def _serve(self) -> None:
        while True:
            collected = self._collect()
            if self._runner.failure:
                raise EngineFatalError(self._runner.failure)
            has_news = not self._stopping.is_set() and self._receive(idle=collected is None)
            if collected is not None:
                self._commit(*collected)
            has_news |= self._submit_compiled()
            # What a step gave is sent while the next one is computed, by other threads or other stages.
            if self._computes_in_launch and collected is not None:
                self._send_outputs()
                collected = None
            if not self._stopping.is_set():
                self._launch()
            unsent = collected is not None or self._outboxes or (has_news and not self._in_flight)
            if unsent or self._clock() >= self._sent_at + HEARTBEAT_S:
                self._send_outputs()
                self._profiler.lap("send")
            if self._stopping.is_set():
                return

    def _receive(self, *, idle: bool) -> bool:
        """Handle what clients sent, and wait for it where there is nothing else to do. Whether there was a message."""
        busy = not idle or self._outboxes or self._scheduler.has_work or self._in_flight
        prepares = self._runner.has_idle_work and not busy and not self._compiling
        idle_s = COMPILING_S if self._compiling else max(0.0, self._sent_at + HEARTBEAT_S - self._clock())
        messages = self._clients.receive(0.0 if busy or prepares else idle_s)
        if prepares and not messages:
            self._runner.do_idle_work()
        if not busy:
            self._profiler.start()
        for client, message in messages:
            self._handle(client, message)
        self._profiler.lap("receive")
        return bool(messages)

    def _handle(self, client: bytes, message: ToEngine) -> None:
        match message:
            case Hello():
                self.greet(client)
            case Submit(request):
                self._open(client, request)
            case Abort():
                self._abort(message)
            case Inject(request_id, token_ids):
                self._trace.add(MessageRecord(self._clock(), message))
                self._scheduler.inject(request_id, token_ids)
            case Forget(owner):
                self._trace.add(MessageRecord(self._clock(), message))
                self._scheduler.forget(owner)
                if not owner:
                    self._runner.forget_host()
            case PeerKeys(keys):
                if self._runner.peers is not None:
                    self._runner.peers.use_keys(keys)
            case Drain():
                self._state = msgspec.structs.replace(self._state, phase="draining")
            case HandBack():
                self._hand_back()
            case Shutdown():
                self.stop()

    def _open(self, client: bytes, request: EngineRequest) -> None:
        """A new request. Where its grammar is compiled first, requests behind it do not wait for that."""
        opened = OpenRequest(client, request, now := self._clock())
        grammar = request.sampling.grammar
        if request.request_id in self._requests:
            self._refuse(opened, f"a request with the id {request.request_id} has not ended yet")
        elif grammar is None or self._grammars is None:
            self._submit(opened, now)
        else:
            self._grammars.compile(request.request_id, grammar)
            self._requests[request.request_id] = opened
            self._compiling.append(opened)

    def _submit_compiled(self) -> bool:
        """Queue the requests whose grammars are ready. Whether there were any."""
        if not self._compiling or self._grammars is None:
            return False
        waiting, self._compiling = self._compiling, []
        for opened in waiting:
            why = self._grammars.ready(opened.request.request_id)
            if why is None:
                self._compiling.append(opened)
            elif why:
                self._refuse(opened, why)
                self._close(opened.request.request_id)
            else:
                self._submit(opened, self._clock())
        return len(self._compiling) < len(waiting)

    def _submit(self, opened: OpenRequest, now: float) -> None:
        """Queue a request in the scheduler, which may refuse it."""
        self._trace.add(MessageRecord(now, Submit(opened.request)))
        refused = self._scheduler.submit(opened.request, now)
        if refused is None:
            self._requests.update(dict.fromkeys(opened.answers, opened))
        else:
            self._outboxes.add(opened.client, refused)
            self._close(opened.request.request_id)

    def _refuse(self, opened: OpenRequest, why: str) -> None:
        output = EngineOutput(request_id=opened.request.request_id, finish_reason="error", message=why)
        self._outboxes.add(opened.client, output)

    def _abort(self, message: Abort) -> None:
        now = self._clock()
        self._trace.add(MessageRecord(now, message))
        self._scheduler.abort(message.request_id, now, success=message.reason == "stop")
        self._close(message.request_id)

    def _hand_back(self) -> None:
        """End the requests that no plan has admitted yet."""
        waiting = {opened.request.request_id: opened for opened in self._requests.values() if opened.queue_s < 0}
        for request_id, opened in waiting.items():
            for answer in opened.answers:
                output = EngineOutput(request_id=answer, finish_reason="abort", code=DRAINING)
                self._outboxes.add(opened.client, output)
            self._abort(Abort(request_id))

    def _close(self, request_id: str) -> None:
        """An answer ended or is not wanted any more; with a request, all its answers."""
        opened = self._requests.pop(request_id, None)
        if opened is None or opened.request.request_id != request_id:
            return
        for answer in opened.answers:
            self._requests.pop(answer, None)
        if opened.request.sampling.grammar is not None and self._grammars is not None:
            self._grammars.drop(request_id)
            if opened in self._compiling:
                self._compiling.remove(opened)

    def _collect(self) -> tuple[LaunchedPlan, StepResults] | None:
        """The oldest plan in flight and its results. None when there is none, or it failed."""
        if not self._in_flight:
            return None
        launched = self._in_flight.take()
        try:
            results = self._runner.collect(launched.handle)
        except Exception as error:  # noqa: BLE001 - whatever a runner raises ends requests, not silently the engine
            self._fail_step(error, launched.plan)
            return None
        self._profiler.lap("results")
        return launched, results

    def _commit(self, launched: LaunchedPlan, results: StepResults) -> None:
        """Take in what a plan gave. An abort that came meanwhile was handled before, so nothing follows it."""
        now, plan = self._clock(), launched.plan
        self._trace.add(ResultsRecord(now, results))
        self._post(self._scheduler.commit(results, now))
        self._scheduler.throughput.observe(plan, self._in_flight.collected(launched, now), results)
        self._computed_tokens += plan.num_tokens
        if plan.chunks:
            self._failed_steps = 0
        self._profiler.lap("commit")
        self._profiler.step(plan.num_tokens, len(plan.chunks))

    def _launch(self) -> None:
        """Launch until depth plans are in flight."""
        try:
            while len(self._in_flight) < self._depth and self._scheduler.has_work and self._launch_one():
                pass
        except Exception as error:  # noqa: BLE001 - as in _collect
            self._fail_step(error, self._launching)
            return
        if not self._in_flight and self._scheduler.has_work:
            raise EngineFatalError("requests are left that the scheduler does not plan")

    def _launch_one(self) -> bool:
        """False where nothing can be planned before something is collected."""
        self._launching = None
        changes = self._runner.host_changes()
        if changes is not None:
            self._trace.add(HostRecord(changes))
            self._scheduler.host.changed(changes)
        now = self._clock()
        plan = self._scheduler.plan(now)
        self._trace.add(PlanRecord(now, plan))
        self._post(self._scheduler.deadlines.take_refusals())
        if plan is None:
            return False
        for join in plan.joins:
            self._requests[join.request_id].planned(now)
        self._profiler.lap("plan")
        launched = self._in_flight.sized(plan, now)
        expected_s = self._in_flight.expected_s(launched)
        if expected_s > self._announced_s:  # before the launch, which may compile kernels
            self._send_outputs(expected_s)
            self._profiler.lap("send")
        self._launching = plan
        launched.handle = self._runner.launch(plan)
        self._in_flight.add(launched)
        return True

    def _fail_step(self, error: Exception, plan: StepPlan | None) -> None:
        """A step failed: every request that has a row ends with an error, those that wait are tried again.

        plan: None where it failed before its launch. Where there was no memory for it, all are tried again: in smaller
        steps if it computes tokens, but for one that was alone in the smallest.
        """
        lacks_memory, transfers = is_out_of_memory(error), []
        what = (
            "there is no memory for a token of this request" if lacks_memory else "the engine failed to compute a step"
        )
        while self._in_flight:
            try:
                results = self._runner.collect(self._in_flight.take().handle)
                transfers += [] if results.transfers is None else [results.transfers]
            except Exception as later:  # noqa: BLE001 - its requests are failed with the others
                LOG.warning("a later step failed too: %s", one_line(later))
        now, step = self._clock(), plan.step if plan else 0
        failure = StepFailure(
            message=f"{what}: {one_line(error)}", step=step, lacks_memory=lacks_memory, transfers=tuple(transfers)
        )
        self._trace.add(FailureRecord(now, failure))
        ended = self._scheduler.fail_running(failure, now)
        if lacks_memory and not ended and plan and plan.chunks:
            LOG.warning("no memory for step %d, smaller ones follow: %s", step, one_line(error))
            return
        LOG.error("a step failed", exc_info=error)
        self._post(ended)
        self._failed_steps += 1
        if self._failed_steps >= MAX_FAILED_STEPS:
            self._send_outputs()
            raise EngineFatalError(f"{self._failed_steps} steps failed in a row, the last with {one_line(error)}")

    def _post(self, outputs: tuple[EngineOutput, ...]) -> None:
        """Keep outputs for their clients until the next message to them."""
        for output in outputs:
            if (opened := self._requests.get(output.request_id)) is not None:
                self._outboxes.add(opened.client, opened.reported(output))
        for output in outputs:
            if output.finish_reason is not None:
                self._close(output.request_id)

    def _send_outputs(self, expected_s: float | None = None) -> None:
        """One message to every client: its outputs and the state after the step.

        expected_s: seconds that the next one may take, of what is in flight unless given.
        """
        if expected_s is None:
            idles = not self._in_flight and self._runner.has_idle_work
            expected_s = UNKNOWN_S if idles else self._in_flight.expected_s()
        self._announced_s = max(HEARTBEAT_S, expected_s)
        message = StepOutputs(
            outputs=(),
            state=self._scheduler.report(self._state),
            computed_tokens=self._computed_tokens,
            prefixes=self._scheduler.prefixes.changes(),
            tenants=self._scheduler.tenants.taken(self._clock()),
            expected_s=self._announced_s,
        )
        self._outboxes.send(message, self._scheduler.prefixes.whole)
        self._computed_tokens = 0
        self._sent_at = self._clock()

    def _gone(self, client: bytes) -> None:
        """A client is gone without a message: its requests end."""
        theirs = {opened.request.request_id: None for opened in self._requests.values() if opened.client == client}
        for request_id in theirs:
            self._abort(Abort(request_id))


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__
