"""Until when the first token of a request has to come, so that it is held for no longer. Pure."""

from collections.abc import Iterable, Mapping
from math import inf
from statistics import median_high
from typing import Final

from kvasir_api import names
from kvasir_api.state import RuntimeState

LEAST_S: Final = 0.001
"""A shorter objective is none that a pod can have."""


def due_s(headers: Mapping[str, str], states: Iterable[RuntimeState], *, began_s: float) -> float:
    """By the request's own header, else by what its service's pods have for those without; infinity without either.

    states: of the pods, of which the median counts, so that one alone does not decide for all. began_s: when the
    request came. A header that is no objective is for the pod to refuse.
    """
    value = headers.get(names.HEADER_TTFT)
    if value is None:
        stated = [state.queue.ttft_s for state in states]
        return began_s + median_high([ttft_s or inf for ttft_s in stated if not ttft_s or ttft_s >= LEAST_S] or [inf])
    try:
        ttft_ms = float(value)
    except ValueError:
        return inf
    return began_s + ttft_ms / 1000 if 0 < ttft_ms <= names.MAX_TTFT_MS else inf


def left_ms(due: float, now_s: float) -> str:
    """What is left of an objective, as the header has it: never nothing, since the pod decides what is too late."""
    return f"{max(1.0, 1000 * (due - now_s)):.0f}"
