"""Whether the queue has a place for a request, and when to come back if not.

Pure; called by the routes before a request is tokenized, with the engine's last snapshot.
"""

from collections.abc import Mapping

from kvasir_api import openai_errors
from kvasir_api.openai_errors import ApiError
from kvasir_api.state import RuntimeState
from kvasir_runtime.client.open_sequences import TenantLoad

MIN_RETRY_S = 1.0
MAX_RETRY_S = 60.0
MAX_LATE_S = 30.0


def queue_refusal(
    state: RuntimeState,
    *,
    inflight: int,
    max_sequences: int,
    max_waiting: int,
    jitter: float = 0.5,
) -> ApiError | None:
    """429 when more than max_waiting sequences would wait, else None. The engine bounds seconds, by what is before one.

    inflight: sequences accepted and not ended, the new ones included, more recent than the snapshot. While the engine
    reports no waiting request, all places of its batch count as free. jitter: 0..1, spreads the retries.
    """
    ttft = state.ttft
    places = max_sequences if state.waiting == 0 else min(state.running, max_sequences)
    waiting = inflight - places
    if waiting <= max_waiting:
        return None
    message = f"{waiting} requests would wait for a place; at most {max_waiting} may."
    if ttft.calibrated and ttft.queue_s > 0:
        retry_s = clamped_retry_s(ttft.queue_s, jitter)
    else:
        retry_s = retry_after_s(state) * (0.75 + 0.5 * jitter)
    return openai_errors.overloaded(message, retry_after_s=retry_s)


def has_place_by_share(
    tenants: Mapping[str, TenantLoad], tenant: str, weight: float, *, num_new: int, places: int
) -> bool:
    """Whether a tenant has less than its share, by weights, of the places that all sequences in flight have.

    tenants: that have some in flight. So none of them fills the queue for the others; of the one that has most a
    request gives way in the engine (`core.queue_drop`).
    """
    others = sum(load.weight for name, load in tenants.items() if name != tenant)
    own = tenants[tenant].num_open if tenant in tenants else 0
    return others > 0 and (own + num_new) * (weight + others) <= places * weight


def clamped_retry_s(late_s: float, jitter: float) -> float:
    """Seconds until another try, of a request that would be so many seconds too late. jitter: 0..1, spreads them."""
    return min(MAX_LATE_S, max(MIN_RETRY_S, late_s)) * (1 + 0.25 * jitter)


def retry_after_s(state: RuntimeState) -> float:
    """Seconds until about a quarter of the running work is done, from the measured speed; within 1..60."""
    steps_left = state.remaining_tokens / max(1, state.running) / 4
    return min(MAX_RETRY_S, max(MIN_RETRY_S, steps_left * state.rates.decode_step_s))
