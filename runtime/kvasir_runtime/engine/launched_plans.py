"""Plans that were launched and not collected, and how long they may take by those before. Owned by the loop.

Knows neither runner nor clients: seconds are given.
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

from kvasir_runtime.core.plan import StepPlan
from kvasir_runtime.core.step_times import StepSize, StepTimes, step_size


@dataclass(slots=True, eq=False)
class LaunchedPlan:
    """began_at: when its launch began, on the loop's clock. expected_s: seconds it takes, at most. handle: what the
    runner's collect() takes, once it is launched."""

    plan: StepPlan
    began_at: float
    size: StepSize
    expected_s: float
    handle: Any = None


class LaunchedPlans:
    """In order of their launches. compiles: as for `StepTimes`."""

    def __init__(self, *, compiles: bool) -> None:
        self._plans: deque[LaunchedPlan] = deque()
        self._times = StepTimes(compiles=compiles)
        self._collected_at = 0.0

    def __len__(self) -> int:
        """How many."""
        return len(self._plans)

    def expected_s(self, more: LaunchedPlan | None = None) -> float:
        """Seconds until all have ended, at most; more: one that is launched now."""
        more_s = 0.0 if more is None else more.expected_s
        return more_s + sum([launched.expected_s for launched in self._plans])

    def sized(self, plan: StepPlan, now: float) -> LaunchedPlan:
        """A plan that is about to be launched."""
        size = step_size(plan)
        return LaunchedPlan(plan, now, size, self._times.expected_s(size))

    def add(self, launched: LaunchedPlan) -> None:
        """It was launched."""
        self._plans.append(launched)

    def take(self) -> LaunchedPlan:
        """The oldest, which is collected next."""
        return self._plans.popleft()

    def collected(self, launched: LaunchedPlan, now: float) -> float:
        """Its results are there. Seconds since its launch, or since those of the one before where that was later."""
        elapsed_s = now - max(launched.began_at, self._collected_at)
        self._times.observe(launched.size, elapsed_s)
        self._collected_at = now
        return elapsed_s
