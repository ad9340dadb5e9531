"""Steps that were planned and whose results are not known yet, the oldest first. Owned by the scheduler."""

from collections import deque
from typing import NamedTuple

from kvasir_runtime.core.plan import StepPlan, StepResults
from kvasir_runtime.core.plan_builder import LaunchedChunk, check_results
from kvasir_runtime.core.ttft_predictor import StepLoad


class StepInFlight(NamedTuple):
    """chunks: of the plan, with their sequences. load: what it does for those that wait."""

    plan: StepPlan
    chunks: list[LaunchedChunk]
    load: StepLoad


class StepsInFlight(deque[StepInFlight]):
    """In order of their launches."""

    def take(self, results: StepResults) -> StepInFlight:
        """The oldest. Raises ValueError, and changes nothing, where the results are not those of its plan."""
        step = self[0].plan.step if self else "none"
        if step != results.step:
            raise ValueError(f"results of step {results.step}, expected those of {step}")
        check_results(self[0].plan, self[0].chunks, results)
        return self.popleft()

    def chunks_of(self, step: int) -> list[LaunchedChunk]:
        """Of the step with a number; none where it was not launched or is over."""
        return next((launched.chunks for launched in self if launched.plan.step == step), [])

    @property
    def has_prompts(self) -> bool:
        """Whether one of them computes more of a sequence than its last token and drafts behind it."""
        return any(chunk.end - chunk.start > 1 for launched in self for chunk in launched.chunks)

    def drop(self) -> list[int]:
        """None of them will be collected. Returns the rows that leave by their plans, which may not all be applied."""
        leaves = [row for launched in self for row in launched.plan.leaves]
        self.clear()
        return leaves
