"""Where the time of a start went: by Kubernetes until the container runs, then by the runtime."""

from typing import Final

from kvasir_api.state import StartupSeconds
from kvasir_api.status import ColdStart
from kvasir_operator.observed.replica import Replica
from kvasir_operator.status.inputs import StatusInputs

MOST_S: Final = 1_000_000_000
"""Of a part that a runtime reports: a sum of two is within what status takes."""


def cold_start(found: StatusInputs) -> ColdStart | None:
    """Of the replica that became ready last; as known before while none that never restarted is ready.

    The parts sum up to the whole, but where rounding of what the runtime measured adds a second or two to it:
    Kubernetes counts whole seconds.
    """
    fresh = [r for r in found.seen.replicas if r.phase == "ready" and r.first_ready_at is not None]
    fresh = [r for r in fresh if r.reading is not None]
    if not fresh:
        return found.seen.status.cold_start
    return _of(max(fresh, key=lambda r: (r.first_ready_at or 0.0, r.name)))


def _of(r: Replica) -> ColdStart:
    ready_at = r.first_ready_at or r.created
    scheduled_at = r.scheduled_at or r.created
    started_at = r.started_at or scheduled_at
    mounted_at = min(max(scheduled_at, r.mounted_at or 0.0), started_at)
    said = r.reading.start if r.reading else StartupSeconds()
    seconds = _whole(ready_at - r.created)
    schedule, image = _whole(scheduled_at - r.created), _whole(started_at - mounted_at)
    weights = _whole(mounted_at - scheduled_at) + _whole(said.weights_s)
    process, load, warm = _whole(said.process_s), _whole(said.load_s), _whole(said.warm_s)
    told = schedule + weights + image + process + load + warm
    return ColdStart(
        seconds=seconds,
        schedule_seconds=schedule or None,
        weights_seconds=weights or None,
        image_seconds=image or None,
        process_seconds=process or None,
        load_seconds=load or None,
        warm_seconds=warm or None,
        other_seconds=max(0, seconds - told) or None,
    )


def _whole(seconds: float) -> int:
    """Rounded, and within what status takes: what a runtime says is not measured here. 0 of what is no number."""
    return round(min(seconds, MOST_S)) if seconds > 0 else 0
