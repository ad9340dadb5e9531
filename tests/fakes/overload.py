"""Clients of a simulated engine as the openai package behaves: a refusal is tried again twice, after Retry-After."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from fakes.simulated_engine import SimulatedEngine
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.server.admission import clamped_retry_s
from kvasir_runtime.wire import EngineOutput

MAX_RETRIES: Final = 2
PROMPTS: Final = (50, 350)
MEAN_ANSWER: Final = 40
PATIENCE_S: Final = 60.0
"""Without a first token, after which a client leaves for good."""


@dataclass(slots=True)
class Call:
    """One call of a client. asked_at: its first try; sent_at: its last. first_at, ended_at: 0 before them."""

    asked_at: float
    prompt_tokens: int
    answer_tokens: int
    ttft_s: float
    sent_at: float = 0.0
    first_at: float = 0.0
    ended_at: float = 0.0
    tries: int = 0
    codes: list[str] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        return self.ended_at > 0

    @property
    def was_in_time(self) -> bool:
        """By its objective, of the try that was answered."""
        return self.succeeded and self.first_at - self.sent_at <= self.ttft_s


class Callers:
    """Independent calls at a rate; prompts and answers vary. max_retries: of a call that is refused.
    prompts: their fewest and most tokens.
    """

    def __init__(
        self,
        engine: SimulatedEngine,
        *,
        ttft_s: float = 0.0,
        max_retries: int = MAX_RETRIES,
        patience_s: float = PATIENCE_S,
        prompts: tuple[int, int] = PROMPTS,
        mean_answer: int = MEAN_ANSWER,
        seed: int = 1,
    ) -> None:
        self.calls: list[Call] = []
        self._engine, self._ttft_s = engine, ttft_s
        self._max_retries, self._patience_s = max_retries, patience_s
        self._prompts, self._mean_answer = prompts, mean_answer
        self._draw = random.Random(seed)

    def load(self, per_s: float, start: float, end: float) -> None:
        """Calls at random times."""
        time = start
        while (time := time + self._draw.expovariate(per_s)) < end:
            self._engine.at(time, self._asker(time))

    def between(self, start: float, end: float) -> list[Call]:
        """Calls that were first tried then."""
        return [call for call in self.calls if start <= call.asked_at < end]

    def prompt_tokens(self, draw: random.Random) -> int:
        """Of one more call."""
        return draw.randint(*self._prompts)

    def _asker(self, time: float) -> Callable[[], None]:
        draw = self._draw
        prompt, answer = self.prompt_tokens(draw), 1 + min(200, int(draw.expovariate(1 / self._mean_answer)))
        call = Call(time, prompt, answer, self._ttft_s)

        def ask() -> None:
            self.calls.append(call)
            self._send(call)

        return ask

    def _send(self, call: Call) -> None:
        engine = self._engine
        call.tries += 1
        call.sent_at = engine.now
        hear = self._hearer(call, call.tries)
        request_id = engine.submit(call.prompt_tokens, call.answer_tokens, hear, ttft_s=call.ttft_s)

        def leave() -> None:
            if not call.first_at and call.sent_at + self._patience_s <= engine.now:
                engine.abort(request_id)

        engine.at(engine.now + self._patience_s, leave)

    def _hearer(self, call: Call, number: int) -> Callable[[EngineOutput], None]:
        def hear(output: EngineOutput) -> None:
            engine = self._engine
            if output.finish_reason == "error":
                call.codes.append(output.code)
                if number <= self._max_retries:
                    wait_s = math.ceil(clamped_retry_s(output.retry_after_s, self._draw.random()))
                    engine.at(engine.now + wait_s, lambda: self._send(call))
                return
            if output.token_ids and not call.first_at:
                call.first_at = engine.now
            if output.finish_reason is not None:
                call.ended_at = engine.now

        return hear


def simulated(
    *, max_sequences: int = 32, max_waiting_s: float = 30.0, noise: float = 0.1, seed: int = 1
) -> SimulatedEngine:
    """An engine with a step of 0.1 s at most while streams wait for it."""
    limits = Limits(
        num_blocks=4000,
        block_size=16,
        max_batch_tokens=512,
        max_sequences=max_sequences,
        max_model_len=4096,
        target_step_s=0.1,
        max_waiting_s=max_waiting_s,
    )
    return SimulatedEngine(limits, noise=noise, seed=seed)


def capacity(
    max_sequences: int,
    *,
    prompts: tuple[int, int] = PROMPTS,
    mean_answer: int = MEAN_ANSWER,
    made: Callable[..., Callers] = Callers,
) -> float:
    """Calls per second that an engine with a long queue answers. made: makes the clients."""
    engine = simulated(max_sequences=max_sequences, max_waiting_s=0.0)
    callers = made(engine, patience_s=math.inf, prompts=prompts, mean_answer=mean_answer)
    callers.load(100.0, 0.0, 10.0)
    engine.run(until=40.0)
    return sum(call.ended_at >= 10.0 for call in callers.calls) / 30.0
