"""What a client is told whose request finds no replica and cannot wait for one, or waited in vain; pure."""

from dataclasses import replace
from typing import Final

from kvasir_api import openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_gateway.held_places import NO_REPLICA
from kvasir_gateway.routing_table import RoutedService

RETRY_AFTER_S: Final = 2.0
"""About one period of readings and readiness probes."""
SPREAD_S: Final = 5
"""Clients that were refused at once come back one after another, within so many seconds."""
SENT_ELSEWHERE: Final = openai_errors.unavailable(
    "The replica gave no answer. Try again later.", retry_after_s=RETRY_AFTER_S, code="upstream_unavailable"
)
"""It sent the request to another address than that from which it came."""
_OWN: Final = frozenset({NO_REPLICA, openai_errors.OVERLOADED})


def spread(error: ApiError, draw: int) -> ApiError:
    """A refusal with its own time to come back, where the time is a guess and not one that was computed.

    draw: a random number, not negative.
    """
    if error.code not in _OWN or error.retry_after_s is None:
        return error
    return replace(error, retry_after_s=error.retry_after_s + draw % SPREAD_S)


def nothing_ready(service: RoutedService, *, waited_s: float = 0.0) -> ApiError:
    """No replica takes requests, and the request does not wait, or has waited for waited_s."""
    if service.backend:
        return openai_errors.unavailable(
            f"The external backend {service.backend} does not take this request now. Try again later.",
            retry_after_s=RETRY_AFTER_S,
            code=NO_REPLICA,
        )
    pods = len(service.endpoints)
    there = f"{pods} of its replicas are starting or draining" if pods else "it has no replica"
    waited = f" after {waited_s:.0f} s" if waited_s >= 1 else ""
    return openai_errors.unavailable(
        f"The model {openai_errors.quoted(service.model)} is not ready{waited}: {there}. Try again later.",
        retry_after_s=RETRY_AFTER_S,
        code=NO_REPLICA,
    )


def busy(service: RoutedService, *, waited_s: float) -> ApiError:
    """No replica had room for the request for waited_s."""
    return openai_errors.overloaded(
        f"All replicas of the model {openai_errors.quoted(service.model)} are busy, and no room came for this request "
        f"within {waited_s:.0f} s. Try again later.",
        retry_after_s=RETRY_AFTER_S,
    )


def queue_full(service: RoutedService) -> ApiError:
    """As many requests wait as may."""
    state = "busy" if service.ready else "not ready"
    return openai_errors.overloaded(
        f"The model {openai_errors.quoted(service.model)} is {state}, and as many requests as may wait for it. "
        "Try again later.",
        retry_after_s=RETRY_AFTER_S,
    )
