"""Where the time of a start went: as Kubernetes says until the container runs, then as the runtime says."""

from kvasir_api.status import ColdStart
from kvasir_operator.observed.replica import Replica
from kvasir_operator.status.findings import Findings


def cold_start(found: Findings) -> ColdStart | None:
    """Of the replica that became ready last; as known before while none that never restarted is ready.

    The parts sum up to the whole, but where rounding of what the runtime measured adds a second or two to it:
    Kubernetes counts whole seconds.
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
    seconds = _whole(ready_at - r.created)
    schedule, image, load, warm = map(_whole, (scheduled_at - r.created, started_at - scheduled_at, load_s, warm_s))
    return ColdStart(
        seconds=seconds,
        schedule_seconds=schedule,
        image_seconds=image,
        load_seconds=load,
        warm_seconds=warm,
        other_seconds=max(0, seconds - schedule - image - load - warm),
    )


def _whole(seconds: float) -> int:
    return max(0, round(seconds))
