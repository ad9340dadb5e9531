"""Whether a service still gets nearer to what it should be. The clock starts anew with every step towards it."""

from dataclasses import dataclass

from kvasir_api import names
from kvasir_operator.status.inputs import StatusInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The last step that was seen, and when. since: seconds of a steady clock. first: seen at the operator's start."""

    step: tuple[str, int, int, int]
    since: float
    first: bool = False


def progress(before: Progress | None, found: StatusInputs, now: float) -> Progress:
    """The state of progress now. A service that is as it should be makes progress all the time."""
    step = (found.current, found.seen.generation, found.updated_ready, found.outdated)
    arrived = found.updated_ready >= found.minimum and not found.outdated
    if before is None:
        return Progress(step=step, since=now, first=not arrived)
    if arrived or before.step != step or (found.rollout is not None and found.rollout.holding):
        return Progress(step=step, since=now)
    return before


def overdue(state: Progress, found: StatusInputs, now: float) -> bool:
    """Whether the deadline passed. What was overdue before the operator's restart still is, until a step is seen."""
    if now - state.since >= found.seen.spec.rollout.progress_deadline_seconds:
        return True
    return state.first and any(
        c.type == names.CONDITION_STALLED
        and c.reason == "ProgressDeadlineExceeded"
        and c.observed_generation == found.seen.generation
        for c in found.seen.status.conditions
    )
