"""Why a service has so many replicas, and why a pod is not ready: what the objects say already, put together for a
person.

Called by `kvasir why`; it reads objects of the API server and decides nothing.
"""

from collections.abc import Iterable, Iterator, Sequence

from kvasir_api.status import InferenceServiceStatus
from kvasir_kube.kinds import Json
from kvasir_operator.observed.replica import Replica, replica
from kvasir_operator.observed.service import parsed_spec, parsed_status

SHOWN_EVENTS = 5


def of_service(service: Json) -> Iterator[str]:
    """The count and what determines it, the last changes with their arithmetic, and the conditions."""
    metadata, status = service["metadata"], parsed_status(service)
    spec, invalid = parsed_spec(service)
    name = f"{metadata['namespace']}/{metadata['name']}"
    yield f"service {name}: {status.ready_replicas} of {status.desired_replicas} replicas ready"
    if invalid:
        yield f"  the spec is invalid: {invalid}"
    scaling = status.autoscaling
    if spec.autoscaling is None:
        yield f"  spec.replicas is {spec.replicas}; there is no spec.autoscaling"
    elif scaling is not None:
        bounds = f"{spec.autoscaling.min_replicas} to {spec.autoscaling.max_replicas}"
        yield f"  autoscaling: mode {spec.autoscaling.mode}, {bounds} replicas"
        yield f"  now: {scaling.message or 'nothing was decided yet'}"
        limit = f", limited by {scaling.limited_by}" if scaling.limited_by else ""
        yield f"  wanted {scaling.desired_replicas}, required {scaling.raw_replicas}{limit}"
        for change in scaling.decisions:
            yield f"  {change.time}  {change.from_} → {change.to}: {change.reason}"
    if roles := status.roles:
        yield f"  roles: {roles.prefill} of them compute prompts for the others: {roles.message}"
    if cheapest := status.capacity.cheapest_class:
        yield f"  AcceleratorClass {cheapest} decodes a token for the least money by forecast; {_runs_on(status)}"
    for condition in status.conditions:
        yield f"  {condition.type}={condition.status} {condition.reason}: {condition.message}"
    if status.rollout.message:
        yield f"  rollout: {status.rollout.message}"


def _runs_on(status: InferenceServiceStatus) -> str:
    chosen = status.rollout.accelerator_class
    return f"the service runs on {chosen}" if chosen else "none is chosen"


def of_pod(pod: Json, events: Iterable[Json]) -> Iterator[str]:
    """What a pod waits for, for how long it has been doing what, and the last that was said of it."""
    found = replica(pod, None)
    yield f"pod {pod['metadata']['namespace']}/{found.name}: {found.phase}"
    yield f"  {_waits_for(found)}"
    yield from (f"  {line}" for line in _times(found))
    if node := _requests(pod):
        yield f"  it requests {node}"
    for event in _last(events):
        yield f"  {event['reason']}: {event.get('note') or event.get('message') or ''}"


def _waits_for(found: Replica) -> str:
    match found.phase:
        case "unschedulable":
            return f"no node was found: {found.last_words or 'the scheduler gave no reason'}"
        case "failed":
            return f"it failed: {found.refusal or found.last_words or 'no reason was reported'}"
        case "starting":
            if not found.assigned:
                return "the scheduler has not looked at it yet"
            return "its volumes, image or container are not there yet" if found.started_at is None else "it starts"
        case "loading":
            return "it loads the model"
        case "draining":
            return "it finishes its requests and leaves"
        case "ready":
            return "it computes prompts for the other replicas" if found.prefill else "it takes requests"


def _times(found: Replica) -> Iterator[str]:
    """Seconds from its creation, of what has happened."""
    happened = (
        ("a node was found", found.scheduled_at),
        ("volumes were there", found.mounted_at),
        ("the container ran", found.started_at),
        ("it was ready first", found.first_ready_at),
    )
    for what, at in happened:
        if at is not None:
            yield f"{what} {max(0.0, at - found.created):.0f} s after its creation"
    if found.restarts:
        yield f"its container was started again {found.restarts} times: {found.last_words}"


def _requests(pod: Json) -> str:
    containers: Sequence[Json] = pod["spec"].get("containers") or ()
    asked = {k: v for c in containers for k, v in ((c.get("resources") or {}).get("requests") or {}).items()}
    where = pod["spec"].get("nodeSelector") or {}
    parts = [f"{name} {amount}" for name, amount in sorted(asked.items())]
    parts += [f"a node with {label}={value}" for label, value in sorted(where.items())]
    return ", ".join(parts)


def _last(events: Iterable[Json]) -> list[Json]:
    def when(event: Json) -> str:
        series = event.get("series") or {}
        return str(
            series.get("lastObservedTime") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
        )

    return sorted(events, key=when)[-SHOWN_EVENTS:]
