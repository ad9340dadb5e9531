"""Drives a scheduler and a runner as the engine does, without sockets and clocks: one tick is one second, or none."""

from collections import deque
from dataclasses import dataclass, field

from fakes.runner import FakeRunner
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import StepPlan, StepResults
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.core.speculation.drafters import Drafter
from kvasir_runtime.wire import EngineOutput, EngineRequest, SamplingConfig

OUTER = (
    *("salt", "route_hashes", "beam", "priority", "ttft_s", "tenant", "weight"),
    *("kv_peer", "kv_peer_tokens", "kv_peer_computes", "for_peer", "prefetch"),
)


@dataclass(slots=True)
class Answer:
    """What a client saw of one request."""

    tokens: list[int] = field(default_factory=list)
    reason: str = ""
    stop_token_id: int | None = None
    cached_tokens: int = 0
    pooled: bytes = b""
    message: str = ""
    score: float = 0.0
    marks: list[int] = field(default_factory=list)
    """For each id that was injected, how many of tokens stand before it."""


@dataclass(slots=True)
class Serving:
    """A scheduler, a runner and the plans in flight between them. tick_s: that a step takes."""

    scheduler: Scheduler
    runner: FakeRunner
    depth: int = 1
    now: float = 0.0
    answers: dict[str, Answer] = field(default_factory=dict)
    flight: deque[tuple[StepPlan, StepResults]] = field(default_factory=deque)
    plans: list[StepPlan] = field(default_factory=list)
    tick_s: float = 1.0

    def submit(self, *requests: EngineRequest) -> None:
        """Queue requests; a refusal is an answer."""
        for request in requests:
            for request_id in request.beam.answers if request.beam else (request.request_id,):
                self.answers[request_id] = Answer()
            refused = self.scheduler.submit(request, self.now)
            if refused is not None:
                self._note(refused)

    def step(self) -> bool:
        """Launch until depth plans are in flight, collect the oldest. False when there was nothing to do."""
        self.now += self.tick_s
        while len(self.flight) < self.depth and (plan := self._plan()) is not None:
            self.plans.append(plan)
            self.flight.append((plan, self.runner.launch(plan)))
        if not self.flight:
            return False
        _, handle = self.flight.popleft()
        for event in self.scheduler.commit(self.runner.collect(handle), self.now):
            self._note(event)
        return True

    def lose_flight(self) -> list[StepPlan]:
        """Plans in flight, of which none is collected any more."""
        plans = [plan for plan, _ in self.flight]
        self.flight.clear()
        self.runner.in_flight = 0
        return plans

    def finish(self, max_steps: int = 10_000) -> None:
        """Step until every request has ended."""
        for _ in range(max_steps):
            if not self.step():
                break
        assert not self.scheduler.has_work, "requests are left that nobody computes"

    def _plan(self) -> StepPlan | None:
        changes = self.runner.host_changes()
        if changes is not None:
            self.scheduler.host.changed(changes)
        plan = self.scheduler.plan(self.now)
        for event in self.scheduler.deadlines.take_refusals():
            self._note(event)
        return plan

    def _note(self, event: EngineOutput) -> None:
        answer = self.answers[event.request_id]
        assert not answer.reason, "an event after the last one"
        answer.marks += [len(answer.tokens)] * event.injected
        answer.tokens += event.token_ids
        answer.reason = event.finish_reason or ""
        answer.stop_token_id = event.stop_token_id
        answer.cached_tokens = event.cached_tokens
        answer.message = event.message
        answer.pooled = event.pooled
        answer.score = event.score


def serving(
    depth: int = 1, runner: FakeRunner | None = None, drafter: Drafter | None = None, **limits: object
) -> Serving:
    """A small engine; limits override those of the default cache of 64 blocks of 4 tokens. drafter: as of Scheduler."""
    runner = runner or FakeRunner()
    settings = {
        "num_blocks": runner.num_blocks,
        "block_size": runner.block_size,
        "max_batch_tokens": 32,
        "max_sequences": 8,
        "max_model_len": runner.max_model_len,
        "eos_token_ids": runner.eos_token_ids,
        **limits,
    }
    runner.num_blocks = int(str(settings["num_blocks"]))
    runner.block_size = int(str(settings["block_size"]))
    runner.max_batch_tokens = int(str(settings["max_batch_tokens"]))
    runner.max_rows = int(str(settings["max_sequences"]))
    return Serving(Scheduler(Limits(**settings), drafter=drafter), runner, depth)  # type: ignore[arg-type]


def request(request_id: str, prompt: tuple[int, ...] | list[int], **sampling: object) -> EngineRequest:
    """A greedy request for 8 tokens unless told otherwise; OUTER go to the request."""
    outer = {name: sampling.pop(name) for name in OUTER if name in sampling}
    values = {"max_tokens": 8, "temperature": 0.0, **sampling}
    return EngineRequest(request_id=request_id, prompt=tuple(prompt), sampling=SamplingConfig(**values), **outer)  # type: ignore[arg-type]
