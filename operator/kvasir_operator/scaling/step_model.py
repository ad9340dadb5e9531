"""How long a step of decode takes by the number of its sequences: a line through what was measured, older samples less.

Called by `window.py`, which adds each tick, and by `workload.py`, which takes the line. Sums of a weighted
least-squares fit, so that its memory is constant.
"""

from typing import Final, NamedTuple

HALF_LIFE_S: Final = 1_800.0
LEAST_STEPS: Final = 10
"""Steps of a tick that say how long one takes."""
LEAST_WEIGHT: Final = 1e-100
"""Steps that weigh less than any new one, long before the sums lose their digits: they fade no further."""
LEAST_SPREAD: Final = 0.05
"""Standard deviation of the batches over their mean, below which they are alike and give no slope."""


class StepModel(NamedTuple):
    """Weighted sums over steps: their number, sequences, seconds, sequences squared, and sequences times seconds."""

    weight: float = 0.0
    rows: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def faded(self, span_s: float) -> "StepModel":
        """As it is span_s seconds later."""
        if self.weight < LEAST_WEIGHT or not span_s:
            return self
        kept = 0.5 ** (span_s / HALF_LIFE_S)
        return StepModel(
            weight=kept * self.weight,
            rows=kept * self.rows,
            seconds=kept * self.seconds,
            squares=kept * self.squares,
            products=kept * self.products,
        )

    def extended(self, *, steps: float, rows: float, seconds: float) -> "StepModel":
        """With some steps: how many, of how many sequences and seconds together."""
        if steps < LEAST_STEPS:
            return self
        batch = rows / steps
        return StepModel(
            weight=self.weight + steps,
            rows=self.rows + rows,
            seconds=self.seconds + seconds,
            squares=self.squares + rows * batch,
            products=self.products + seconds * batch,
        )

    @property
    def line(self) -> "StepLine":
        """The line through what was measured."""
        if not self.weight:
            return StepLine()
        mean_s, mean_batch = self.seconds / self.weight, self.rows / self.weight
        spread = self.squares / self.weight - mean_batch**2
        if spread <= (LEAST_SPREAD * mean_batch) ** 2:
            return StepLine(mean_s=mean_s, mean_batch=mean_batch, base_s=mean_s)
        slope_s = (self.products / self.weight - mean_batch * mean_s) / spread
        slope_s = min(max(0.0, slope_s), mean_s / mean_batch)
        base_s = mean_s - slope_s * mean_batch
        return StepLine(mean_s=mean_s, mean_batch=mean_batch, base_s=base_s, slope_s=slope_s, varied=True)


class StepLine(NamedTuple):
    """Seconds of a step: mean_s of one of mean_batch sequences, both 0 before one was measured; base_s beside what its
    sequences add; slope_s that each of them adds, 0 where batches were alike, or larger ones no slower. varied: whether
    batches differed enough to show how steps grow with them."""

    mean_s: float = 0.0
    mean_batch: float = 0.0
    base_s: float = 0.0
    slope_s: float = 0.0
    varied: bool = False

    def step_s(self, batch: float) -> float:
        """Seconds of a step with so many sequences; the mean where no slope is known."""
        return self.base_s + self.slope_s * batch

    def batch_within(self, step_s: float) -> float:
        """Sequences with which a step takes so long, at least 1; 0 before a step was measured.

        Without a slope the whole step is taken to grow with its sequences: that gives too few of them rather than
        too many, and another size of batch corrects it.
        """
        if not self.mean_s:
            return 0.0
        if self.slope_s:
            return max(1.0, (step_s - self.base_s) / self.slope_s)
        return max(1.0, self.mean_batch * step_s / self.mean_s)
