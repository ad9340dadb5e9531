"""A runner with memory for small steps only: it raises what Python, numpy or torch raise, and passes on the rest."""

from collections.abc import Callable, Container
from dataclasses import dataclass, field
from typing import Any

from kvasir_runtime.core.plan import HostChanges, StepPlan, StepResults


@dataclass(slots=True)
class CrampedRunner:
    """Before another runner.

    fits_tokens: query tokens of a step that there is memory for. never: a request for no token of which there is.
    fail: raises the error. at_launch: the plan does not reach the runner; else it is computed and its results are lost.
    fails_before: calls of host_changes that fail, from 0 on.
    """

    inner: Any
    fits_tokens: int
    fail: Callable[[], object]
    never: str = ""
    at_launch: bool = False
    fails_before: Container[int] = ()
    num_failed: int = 0
    largest: int = 0
    """Query tokens of the largest step that succeeded."""
    _rows: dict[int, str] = field(default_factory=dict)
    _num_asked: int = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def host_changes(self) -> HostChanges | None:
        """Before each plan."""
        self._num_asked += 1
        if self._num_asked - 1 in self.fails_before:
            self.fail()
        changes: HostChanges | None = self.inner.host_changes()
        return changes

    def launch(self, plan: StepPlan) -> Any:
        """Fails for a plan that is too large."""
        self._rows |= {join.row: join.request_id for join in plan.joins}
        is_too_large = plan.num_tokens > self.fits_tokens or any(
            self._rows[chunk.row] == self.never for chunk in plan.chunks
        )
        self.num_failed += is_too_large
        if is_too_large and self.at_launch:
            self.fail()
        if not is_too_large:
            self.largest = max(self.largest, plan.num_tokens)
        return self.inner.launch(plan), is_too_large

    def collect(self, handle: tuple[Any, bool]) -> StepResults:
        """In order of launch."""
        launched, is_too_large = handle
        results: StepResults = self.inner.collect(launched)
        if is_too_large:
            self.fail()
        return results
