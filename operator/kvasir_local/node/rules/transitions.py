"""How a container's record changes when it starts, fails to start, waits or ends. Called by the pod's worker."""

from dataclasses import replace

from kvasir_local.node.rules import backoff
from kvasir_local.node.rules.pod_record import ContainerRecord, Running, Terminated, Waiting

IMAGE_BACKOFF = backoff.BackoffPolicy()


def next_run(known: ContainerRecord) -> int:
    """The number of the run that would start now; the first is 0, as restartCount counts."""
    return known.restarts + 1 if last_end(known) else known.restarts


def last_end(known: ContainerRecord) -> Terminated | None:
    """How the latest run ended, if one has."""
    return known.state if isinstance(known.state, Terminated) else known.last


def container_id(pod_uid: str, name: str, run: int) -> str:
    """Names one run of one container of one pod."""
    return f"{pod_uid}-{name}-{run}"


def started(known: ContainerRecord, *, run: int, pod_uid: str, image: str, now: float) -> ContainerRecord:
    """The container runs since now."""
    identity = container_id(pod_uid, known.name, run)
    return replace(
        known,
        state=Running(now),
        last=last_end(known),
        restarts=run,
        image=image,
        container_id=identity,
        not_before=0.0,
    )


def start_failed(
    known: ContainerRecord,
    message: str,
    *,
    run: int,
    pod_uid: str,
    image: str,
    policy: backoff.BackoffPolicy,
    now: float,
) -> ContainerRecord:
    """The program could not be started: an end with code 128, as container engines report it."""
    begun = started(known, run=run, pod_uid=pod_uid, image=image, now=now)
    return ended(begun, exit_code=128, reason="StartError", message=message, policy=policy, now=now)


def ended(
    known: ContainerRecord, *, exit_code: int, message: str, policy: backoff.BackoffPolicy, now: float, reason: str = ""
) -> ContainerRecord:
    """The container ended; not_before says when it may start again, should the restart policy say so."""
    began = known.state.started_at if isinstance(known.state, Running) else now
    following, wait_s = backoff.after_run(policy, known.backoff, ran_s=now - began)
    end = Terminated(
        exit_code=exit_code,
        reason=reason or ("Completed" if exit_code == 0 else "Error"),
        message=message,
        started_at=began,
        finished_at=now,
        container_id=known.container_id,
    )
    return replace(known, state=end, started=False, ready=False, backoff=following, not_before=now + wait_s)


def waits(known: ContainerRecord, reason: str, message: str, *, retry_s: float, now: float) -> ContainerRecord:
    """The container cannot start yet; it is tried again after retry_s."""
    return replace(known, state=Waiting(reason, message), last=last_end(known), not_before=now + retry_s)


def waits_for_image(known: ContainerRecord, message: str, *, now: float) -> ContainerRecord:
    """The image is unknown here: ErrImagePull at first, then ImagePullBackOff with growing pauses."""
    again = isinstance(known.state, Waiting) and known.state.reason in ("ErrImagePull", "ImagePullBackOff")
    following, wait_s = backoff.after_run(IMAGE_BACKOFF, known.backoff, ran_s=0.0)
    reason = "ImagePullBackOff" if again else "ErrImagePull"
    waiting = waits(known, reason, message, retry_s=wait_s or IMAGE_BACKOFF.base_s, now=now)
    return replace(waiting, backoff=following)
