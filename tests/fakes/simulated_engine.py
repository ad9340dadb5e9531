"""The real scheduler in virtual time: steps cost what a formula says, answers are as long as a test says."""

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.plan import SampledTokens, StepPlan, StepResults
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.wire import EngineOutput, EngineRequest, SamplingConfig

TOKEN = 7
MAX_ANSWER = 400


@dataclass(slots=True)
class SimulatedEngine:
    """base_s, token_s: cost of a step and of each of its tokens. noise: its standard deviation, as a share of it.

    Clients are functions that are called at a time (`at`), and with each output of a request of theirs.
    """

    limits: Limits
    base_s: float = 0.020
    token_s: float = 0.00025
    noise: float = 0.0
    seed: int = 1
    now: float = 0.0
    scheduler: Scheduler = field(init=False)
    seconds_of_steps: float = field(init=False, default=0.0)
    _draw: random.Random = field(init=False)
    _numbers: "itertools.count[int]" = field(init=False, default_factory=itertools.count)
    _events: list[tuple[float, int, Callable[[], None]]] = field(init=False, default_factory=list)
    _left: dict[str, int] = field(init=False, default_factory=dict)
    _hear: dict[str, Callable[[EngineOutput], None]] = field(init=False, default_factory=dict)
    _ids: dict[int, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.scheduler = Scheduler(self.limits)
        self._draw = random.Random(self.seed)

    def at(self, time: float, what: Callable[[], None]) -> None:
        """Call a client at a time."""
        heapq.heappush(self._events, (time, next(self._numbers), what))

    def submit(
        self,
        prompt_tokens: int,
        answer_tokens: int,
        hear: Callable[[EngineOutput], None],
        *,
        ttft_s: float = 0.0,
        admitted: bool = False,
    ) -> str:
        """Send a request of its own prompt, whose answer ends after so many tokens; the engine is not told when."""
        number = next(self._numbers)
        request_id = f"r{number}"
        request = EngineRequest(
            request_id=request_id,
            prompt=(number,) * prompt_tokens,
            sampling=SamplingConfig(max_tokens=MAX_ANSWER),
            ttft_s=ttft_s,
            admitted=admitted,
        )
        self._left[request_id], self._hear[request_id] = answer_tokens, hear
        refused = self.scheduler.submit(request, self.now)
        if refused is not None:
            self._tell(refused)
        return request_id

    def abort(self, request_id: str) -> None:
        """Its client leaves."""
        self.scheduler.abort(request_id, self.now)
        self._hear.pop(request_id, None)

    def run(self, until: float) -> None:
        """Serve until a time, or until nothing is left to do."""
        while self.now < until:
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            if self.step():
                continue
            if not self._events:
                return
            self.now = max(self.now, self._events[0][0])

    def step(self) -> bool:
        """Compute one step. False where there is none to compute."""
        plan = self.scheduler.plan(self.now) if self.scheduler.has_work else None
        for output in self.scheduler.deadlines.take_refusals():
            self._tell(output)
        if plan is None:
            return False
        elapsed_s = (self.base_s + self.token_s * plan.num_tokens) * max(0.2, self._draw.gauss(1.0, self.noise))
        self.now += elapsed_s
        self.seconds_of_steps += elapsed_s
        for output in self.scheduler.commit(self._results(plan), self.now):
            self._tell(output)
        return True

    def _results(self, plan: StepPlan) -> StepResults:
        self._ids.update({join.row: join.request_id for join in plan.joins})
        sampled = []
        for chunk in plan.chunks:
            if chunk.samples:
                request_id = self._ids[chunk.row]
                self._left[request_id] -= 1
                sampled.append(SampledTokens(chunk.row, (TOKEN,), ended=self._left[request_id] <= 0))
        return StepResults(step=plan.step, sampled=tuple(sampled))

    def _tell(self, output: EngineOutput) -> None:
        hear = self._hear.get(output.request_id)
        if output.finish_reason is not None:
            self._hear.pop(output.request_id, None)
        if hear is not None:
            hear(output)
