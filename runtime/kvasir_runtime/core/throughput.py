"""Measured throughput: exponential means that forget slow starts and follow load, and sums of what was decoded.

Pure: seconds are given.
"""

from dataclasses import dataclass

from kvasir_api.state import DecodeTotals, MeasuredRates
from kvasir_runtime.core.plan import StepPlan

MEMORY_S = 10.0
"""Busy seconds after which a measurement weighs 1/e: several autoscaler ticks, shorter than any of its windows."""


@dataclass(slots=True)
class DecayingMean:
    """Amount per weight, both fading as weight passes; robust against many tiny or few huge steps."""

    amount: float = 0.0
    weight: float = 0.0

    def add(self, amount: float, weight: float, keep: float) -> None:
        """keep: share of the past that stays, 0..1."""
        self.amount = self.amount * keep + amount
        self.weight = self.weight * keep + weight

    @property
    def value(self) -> float:
        """0 until something was measured."""
        return self.amount / self.weight if self.weight > 0 else 0.0


class Throughput:
    """Tokens per second of steps bound by prompts, seconds per step of pure decode, and all such steps together."""

    __slots__ = ("_decode", "_kv_tokens", "_prefill", "_rows", "_seconds", "_steps")

    def __init__(self) -> None:
        self._prefill = DecayingMean()
        self._decode = DecayingMean()
        self._steps = self._rows = self._kv_tokens = 0
        self._seconds = 0.0

    def observe(self, plan: StepPlan, elapsed_s: float) -> None:
        """elapsed_s: from launch, or from the end of the step before if that was later, to the collected results."""
        if elapsed_s <= 0 or not plan.chunks:
            return
        keep = 1.0 / (1.0 + elapsed_s / MEMORY_S)
        prompt_tokens = sum(chunk.num_tokens for chunk in plan.chunks if chunk.num_tokens > 1)
        if not prompt_tokens:
            self._decode.add(elapsed_s, 1.0, keep)
            self._steps += 1
            self._seconds += elapsed_s
            self._rows += len(plan.chunks)
            self._kv_tokens += sum([chunk.start for chunk in plan.chunks]) + len(plan.chunks)
        elif 2 * prompt_tokens >= plan.num_tokens:
            self._prefill.add(plan.num_tokens, elapsed_s, keep)

    @property
    def rates(self) -> MeasuredRates:
        """What `/state` reports."""
        return MeasuredRates(prefill_tokens_per_s=self._prefill.value, decode_step_s=self._decode.value)

    @property
    def decoded(self) -> DecodeTotals:
        """The sums beside them."""
        return DecodeTotals(steps=self._steps, seconds=self._seconds, rows=self._rows, kv_tokens=self._kv_tokens)
