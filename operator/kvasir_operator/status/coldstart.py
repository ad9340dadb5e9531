"""Where the time of a start went: as Kubernetes says until the container runs, then as the runtime says."""

from kvasir_api.status import ColdStart
from kvasir_operator.observed.replica import Replica
from kvasir_operator.status.findings import Findings


def cold_start(found: Findings) -> ColdStart | None:
    """Of the replica that became ready last; as known before while none that never restarted is ready.

    Kubernetes counts whole seconds, so parts may miss the sum by one.
    """
    fresh = [r for r in found.seen.replicas if r.phase == "ready" and r.ready_at is not None and not r.restarts]
    fresh = [r for r in fresh if r.reading is not None]
    if not fresh:
        return found.seen.status.cold_start
    return _of(max(fresh, key=lambda r: (r.ready_at or 0.0, r.name)))


def _of(r: Replica) -> ColdStart:
    ready_at = r.ready_at or r.created
    scheduled_at = r.scheduled_at or r.created
    started_at = r.started_at or scheduled_at
    said = r.reading.start if r.reading else None
    load_s, warm_s = (said.load_s, said.warm_s) if said else (0.0, 0.0)
    return ColdStart(
        seconds=_whole(ready_at - r.created),
        schedule_seconds=_whole(scheduled_at - r.created),
        image_seconds=_whole(started_at - scheduled_at),
        load_seconds=_whole(load_s),
        warm_seconds=_whole(warm_s),
        other_seconds=_whole(ready_at - started_at - load_s - warm_s),
    )


def _whole(seconds: float) -> int:
    return max(0, round(seconds))
