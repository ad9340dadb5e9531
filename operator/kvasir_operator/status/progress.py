"""Whether a service still makes progress towards its spec. The clock starts again with every step."""

from dataclasses import dataclass

from kvasir_api import names
from kvasir_operator.observed.service import Observed
from kvasir_operator.stages import RolloutPlan
from kvasir_operator.status.inputs import minimum


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The last step that was seen, and when. since: seconds of a steady clock. first: seen at the operator's start."""

    step: tuple[str, int, int, int, int]
    since: float
    first: bool = False


def progress(before: Progress | None, seen: Observed, plan: RolloutPlan | None, *, wanted: int, now: float) -> Progress:
    """The state of progress now. A service that is as it should be makes progress all the time.

    plan: None when the spec has a violation or replicas wait. now: seconds of a steady clock.
    """
    current = plan.target.revision if plan is not None else ""
    ready, outdated = seen.ready(current), seen.outdated(current)
    fetched = sum(r.downloaded_bytes for r in seen.of(current) if r.downloads)
    if before is not None and before.step[0] == current:
        fetched = max(fetched, before.step[4])  # a download that begins again is no step
    step = (current, seen.generation, ready, outdated, fetched)
    arrived = ready >= minimum(seen, wanted) and not outdated
    if before is None:
        return Progress(step=step, since=now, first=not arrived)
    if arrived or before.step != step or (plan is not None and plan.target.holding):
        return Progress(step=step, since=now)
    return before


def overdue(state: Progress, seen: Observed, now: float) -> bool:
    """Whether the deadline passed. What was overdue before the operator's restart still is, until a step is seen."""
    if now - state.since >= seen.spec.rollout.progress_deadline_seconds:
        return True
    return state.first and any(
        c.type == names.CONDITION_STALLED
        and c.reason == "ProgressDeadlineExceeded"
        and c.observed_generation == seen.generation
        for c in seen.status.conditions
    )
