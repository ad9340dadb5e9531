"""Replays a recorded trace on a new scheduler and compares every plan: python -m kvasir_runtime.engine.replay FILE.

A difference means that a decision depended on something that is not in the trace, or that the rule has changed.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kvasir_runtime.core.plan import StepPlan
from kvasir_runtime.core.scheduler import Scheduler
from kvasir_runtime.engine.trace import (
    FailureRecord,
    HostRecord,
    MessageRecord,
    PlanRecord,
    ResultsRecord,
    StartRecord,
    TraceRecord,
    records,
)
from kvasir_runtime.wire import Abort, Forget, Inject, Submit


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """num_plans: plans that came out as recorded. recorded, replayed: the first two that differ."""

    num_plans: int
    differs: bool = False
    recorded: StepPlan | None = None
    replayed: StepPlan | None = None


def replay(trace: Iterable[TraceRecord]) -> Replay:
    """Replays until the end or the first difference. Raises ValueError when the trace has no beginning."""
    scheduler: Scheduler | None = None
    num_plans = 0
    for record in trace:
        if isinstance(record, StartRecord):
            scheduler = Scheduler(record.limits)
        elif scheduler is None:
            raise ValueError("the trace does not begin with the limits of its scheduler")
        elif isinstance(record, PlanRecord):
            plan = scheduler.plan(record.now)
            if plan != record.plan:
                return Replay(num_plans=num_plans, differs=True, recorded=record.plan, replayed=plan)
            num_plans += plan is not None
        else:
            _apply(scheduler, record)
    return Replay(num_plans=num_plans)


def _apply(scheduler: Scheduler, record: MessageRecord | ResultsRecord | FailureRecord | HostRecord) -> None:
    match record:
        case MessageRecord(now, Submit(request)):
            scheduler.submit(request, now)
        case MessageRecord(now, Abort(request_id, reason)):
            scheduler.abort(request_id, now, success=reason == "stop")
        case MessageRecord(_, Inject(request_id, token_ids)):
            scheduler.inject(request_id, token_ids)
        case MessageRecord(_, Forget(owner)):
            scheduler.forget(owner)
        case HostRecord(changes):
            scheduler.host.changed(changes)
        case ResultsRecord(now, results):
            scheduler.commit(results, now)
        case FailureRecord(now, failure):
            scheduler.fail_running(failure, now)


def main(arguments: list[str]) -> int:
    """0 when every plan is the same, 1 when one differs, 2 when the file cannot be read."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m kvasir_runtime.engine.replay FILE\n")
        return 2
    try:
        result = replay(records(Path(arguments[0])))
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        sys.stderr.write(f"error: {arguments[0]}: {error}\n")
        return 2
    if result.differs:
        sys.stdout.write(
            f"plan {result.num_plans + 1} differs\nrecorded: {result.recorded}\nreplayed: {result.replayed}\n"
        )
        return 1
    sys.stdout.write(f"{result.num_plans} plans came out as recorded\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
