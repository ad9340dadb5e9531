"""Measured throughput: exponential means that forget slow starts and follow load, and sums of what was decoded.

Pure: seconds are given.
"""

from dataclasses import dataclass

from kvasir_api.roofline import StepWork
from kvasir_api.state import DecodeTotals, MeasuredRates, WorkTotals
from kvasir_runtime.core.plan import StepPlan, StepResults

MEMORY_S = 10.0
"""Busy seconds after which a measurement weighs 1/e: several autoscaler ticks, shorter than any of its windows."""
LEAST_VARIANCE = 0.05
"""Of the numbers of sequences in steps, below which one outlier would make the slope."""


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


@dataclass(slots=True)
class DecayingLine:
    """A line by least squares through points that fade as new ones come."""

    weight: float = 0.0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    xy: float = 0.0

    def add(self, x: float, y: float, keep: float) -> None:
        """keep: share of the past that stays, 0..1."""
        self.weight = self.weight * keep + 1.0
        self.x = self.x * keep + x
        self.y = self.y * keep + y
        self.xx = self.xx * keep + x * x
        self.xy = self.xy * keep + x * y

    @property
    def slope(self) -> float:
        """At least 0; 0 while the points hardly differ in x."""
        if not self.weight:
            return 0.0
        mean = self.x / self.weight
        variance = self.xx / self.weight - mean * mean
        if variance < LEAST_VARIANCE:
            return 0.0
        return max(0.0, (self.xy - mean * self.y) / self.weight / variance)

    def at(self, x: float) -> float:
        """Its y, at least 0; 0 without a point."""
        return max(0.0, (self.y + self.slope * (x * self.weight - self.x)) / self.weight) if self.weight else 0.0


class Throughput:
    """Tokens per second of steps bound by prompts, seconds per step of pure decode and what a sequence adds to them,
    what prompts add to steps that decode too, and all steps of pure decode together.
    """

    __slots__ = (
        *("_decode", "_kv_tokens", "_line", "_prefill", "_rows", "_seconds", "_stall", "_steps", "_work", "work"),
        *("_drafted_rows", "_drafted_seconds", "_drafted_steps"),
    )

    def __init__(self, work: StepWork | None = None) -> None:
        """work: what steps of the model compute and read; None where its sizes are not known."""
        self._work = work
        self.work = WorkTotals()
        self._prefill = DecayingMean()
        self._decode = DecayingMean()
        self._line = DecayingLine()
        self._stall = DecayingMean()
        self._steps = self._rows = self._kv_tokens = self._drafted_rows = 0
        self._seconds = self._drafted_steps = self._drafted_seconds = 0.0

    def observe(self, plan: StepPlan, elapsed_s: float, results: StepResults | None = None) -> None:
        """elapsed_s: from launch, or from the end of the step before if that was later, to the collected results.

        results: of a plan with drafts. As many steps as it gave tokens to a sequence took so long together.
        """
        if elapsed_s <= 0 or not plan.chunks:
            return
        self._add_work(plan, elapsed_s)
        keep = 1.0 / (1.0 + elapsed_s / MEMORY_S)
        # Beside drafts a state reads again what it was taken back behind, which is no prompt.
        prompts = [chunk.num_tokens for chunk in plan.chunks if chunk.num_tokens > 1 and not chunk.drafts]
        prompt_tokens, num_rows = sum(prompts), len(plan.chunks) - len(prompts)
        num_drafts = sum([len(chunk.drafts) for chunk in plan.chunks])
        if not prompts:
            num_sampled = sum([len(sampled.tokens) for sampled in results.sampled]) if results and num_drafts else 0
            each = max(1.0, num_sampled / num_rows)
            self._decode.add(elapsed_s, each, keep)
            self._line.add(num_rows, elapsed_s / each, keep)
            if num_drafts:
                self._drafted_steps += each
                self._drafted_seconds += elapsed_s
                self._drafted_rows += max(num_sampled, num_rows)
                return
            self._steps += 1
            self._seconds += elapsed_s
            self._rows += num_rows
            self._kv_tokens += sum([chunk.start for chunk in plan.chunks]) + num_rows
            return
        if num_rows and self._line.weight:
            self._stall.add(max(0.0, elapsed_s - self._line.at(num_rows)), elapsed_s, keep)
        if 2 * prompt_tokens >= plan.num_tokens:
            self._prefill.add(plan.num_tokens, elapsed_s, keep)

    def _add_work(self, plan: StepPlan, elapsed_s: float) -> None:
        chunks, work, flops, read_bytes = plan.chunks, self._work, 0.0, 0.0
        if work is not None:
            context = sum([chunk.num_tokens * (chunk.start + (chunk.num_tokens + 1) / 2) for chunk in chunks])
            ends = sum([chunk.start + chunk.num_tokens for chunk in chunks])
            heads = sum([chunk.samples + len(chunk.drafts) for chunk in chunks])
            flops = work.flops(tokens=plan.num_tokens, heads=heads, context=context)
            read_bytes = work.read_bytes(tokens=plan.num_tokens, rows=len(chunks), context=ends)
        before = self.work
        self.work = WorkTotals(
            seconds=before.seconds + elapsed_s,
            flops=before.flops + flops,
            read_bytes=before.read_bytes + read_bytes,
        )

    @property
    def rates(self) -> MeasuredRates:
        """What `/state` reports."""
        return MeasuredRates(
            prefill_tokens_per_s=self._prefill.value,
            decode_step_s=self._decode.value,
            decode_slope_s=self._line.slope,
            stall_fraction=self._stall.value,
        )

    @property
    def decoded(self) -> DecodeTotals:
        """The sums beside them."""
        return DecodeTotals(
            steps=self._steps,
            seconds=self._seconds,
            rows=self._rows,
            kv_tokens=self._kv_tokens,
            drafted_steps=self._drafted_steps,
            drafted_seconds=self._drafted_seconds,
            drafted_rows=self._drafted_rows,
        )
