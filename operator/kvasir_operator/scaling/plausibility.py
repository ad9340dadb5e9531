"""Whether a reading can be true of any pod: a document that contradicts itself, or the one before it, is no reading, as
if the pod was silent. The same of what a gateway says.

Called by `window.py` for each reading of a tick. It knows the contract of `/state` and nothing of the service.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from msgspec.structs import astuple

from kvasir_api.state import RequestTotals, RuntimeState, ServiceDemand, restarted
from kvasir_operator.scaling.capacity import ReplicaCapacity

MOST_WAITING: Final = 1_000_000
"""Requests: far beyond the queue that any runtime keeps."""
MOST_TOKENS_PER_S: Final = 1e8
LEAST_TOKENS_PER_S: Final = 1e-3
MOST_STEP_S: Final = 3_600.0
MOST_REQUESTS_PER_S: Final = 10_000.0
"""Beyond what one server can take, answer or refuse."""
MOST_STEPS_PER_S: Final = 10_000.0
LATE_S: Final = 1.0
"""So much later than the reading before a document may have been written, beyond the time between the two."""
MOST: Final = 2.0**53
"""Of any number: up to it a float holds each integer. JSON knows no bound, and larger ones do not become floats."""
LOAD: Final = ("running", "waiting", "waiting_uncached_tokens", "max_sequences", "max_model_len")
COUNTERS: Final = ("shed", "expired", "abandoned", "held_retried")
"""Of a gateway, since it started."""

_LOAD: Final = attrgetter(*LOAD)
_COUNTED: Final = attrgetter(*COUNTERS)


def contradiction(reading: RuntimeState) -> str:
    """What in a reading cannot be true, for a person; empty when it may be. Zeros and absent fields always may be."""
    said = "" if _in_range(reading) else next((said for said, wrong in _ranges(reading) if wrong), "")
    return said or _disagreement(reading)


def leap(before: RuntimeState, after: RuntimeState, gap_s: float) -> str:
    """As `contradiction`, of a reading beside the one that was taken gap_s seconds before: counters that fall while the
    process is the same, or grow by more than there can be."""
    old, new = RequestTotals() if restarted(before, after) else before.totals, after.totals
    span_s, longest = gap_s + LATE_S, after.max_model_len
    came, ended = new.arrivals - old.arrivals, new.completions - old.completions
    if came < 0:
        return f"arrivals fell from {old.arrivals} to {new.arrivals}"
    if ended < 0:
        return f"completions fell from {old.completions} to {new.completions}"
    if max(came, ended) > MOST_REQUESTS_PER_S * span_s:
        return f"{came} more arrivals and {ended} more completions within {span_s:.0f} s"
    most = span_s * (after.max_sequences * MOST_STEPS_PER_S or MOST_TOKENS_PER_S)
    if (more := new.generation_tokens - old.generation_tokens) > most:
        return f"{more} more generated tokens within {span_s:.0f} s"
    most = came * longest if longest > 0 and new.arrivals else MOST_TOKENS_PER_S * span_s
    if (more := new.uncached_prompt_tokens - old.uncached_prompt_tokens) > most:
        return f"{more} more prompt tokens of {came} more requests"
    return ""


def demand_contradiction(demand: ServiceDemand) -> str:
    """As `contradiction`, of what one gateway says of a service."""
    for name in ("held", "held_bytes", "inflight", *COUNTERS):
        said, wrong = _range(name, getattr(demand, name))
        if wrong:
            return said
    for name in ("held", "inflight"):
        if (number := getattr(demand, name)) > MOST_WAITING:
            return f"{name} is {number}"
    return ""


def gateway_restarted(before: ServiceDemand, after: ServiceDemand) -> bool:
    """Whether counters of a gateway began again."""
    return any(new < old for old, new in zip(_COUNTED(before), _COUNTED(after), strict=True))


def demand_leap(before: ServiceDemand, after: ServiceDemand, gap_s: float) -> str:
    """As `leap`, of what one gateway says. Counters that fall are those of another process."""
    begun = (0,) * len(COUNTERS) if gateway_restarted(before, after) else _COUNTED(before)
    for name, old, new in zip(COUNTERS, begun, _COUNTED(after), strict=True):
        if new - old > MOST_REQUESTS_PER_S * (gap_s + LATE_S):
            return f"{new - old} more {name} requests within {gap_s + LATE_S:.0f} s"
    return ""


def unlikely(capacity: ReplicaCapacity) -> str:
    """As `contradiction`, of a capacity in a recording that was written by hand."""
    for name, number in capacity._asdict().items():
        said, wrong = _range(name, number)
        if wrong:
            return said
    speed = capacity.prefill_tokens_per_s
    return "" if _speed_may_be(speed) else f"prefill_tokens_per_s is {speed:g}"


def _speed_may_be(tokens_per_s: float) -> bool:
    return not tokens_per_s or LEAST_TOKENS_PER_S <= tokens_per_s <= MOST_TOKENS_PER_S


def _in_range(reading: RuntimeState) -> bool:
    """Whether nothing is out of range: what `_ranges` says, in a fraction of its time. NaN is in no range."""
    numbers = (
        *astuple(reading.kv),
        *astuple(reading.totals),
        *astuple(reading.rates),
        *astuple(reading.decoded),
        *astuple(reading.served),
        *_LOAD(reading),
    )
    if not (min(numbers) >= 0 and max(numbers) <= MOST and sum(numbers) >= 0):  # with a NaN the sum is one
        return False
    rates = reading.rates
    return _speed_may_be(rates.prefill_tokens_per_s) and rates.decode_step_s <= MOST_STEP_S


def _disagreement(reading: RuntimeState) -> str:
    """Which numbers, each possible by itself, cannot be true together."""
    kv, totals, expired = reading.kv, reading.totals, reading.ttft.expired
    parts = kv.pinned_tokens + kv.cached_tokens + kv.free_tokens
    whole = bool(kv.cached_tokens or kv.free_tokens)
    longest = reading.max_model_len
    if parts > kv.capacity_tokens + kv.block_size:
        return f"{kv.pinned_tokens} pinned tokens of {kv.capacity_tokens}"
    if whole and parts < kv.capacity_tokens - kv.block_size:
        return f"{kv.capacity_tokens} tokens of KV cache, of which {parts} are accounted for"
    if 0 < reading.max_sequences < reading.running:
        return f"{reading.running} running requests, at most {reading.max_sequences} sequences"
    if reading.running > MOST_WAITING:
        return f"{reading.running} running requests"
    if reading.waiting > MOST_WAITING:
        return f"{reading.waiting} waiting requests"
    if longest > 0 and reading.waiting_uncached_tokens > reading.waiting * longest:
        return f"{reading.waiting_uncached_tokens} tokens of {reading.waiting} waiting prompts"
    if not 0 <= expired <= totals.aborts:
        return f"{expired} expired requests of {totals.aborts} aborted ones"
    return _ended(totals, longest) or _queued(reading)


def _ranges(reading: RuntimeState) -> Iterable[tuple[str, bool]]:
    """Each number with whether it is negative, not finite or beyond MOST; speeds beyond any device."""
    rates, decoded, totals = reading.rates, reading.decoded, reading.totals
    for where in (reading.kv, totals, rates, decoded, reading.served):
        for name in where.__struct_fields__:
            yield _range(name, getattr(where, name))
    for name in LOAD:
        yield _range(name, getattr(reading, name))
    speed, step = rates.prefill_tokens_per_s, rates.decode_step_s
    yield f"prefill_tokens_per_s is {speed:g}", not _speed_may_be(speed)
    yield f"decode_step_s is {step:g}", step > MOST_STEP_S


def _range(name: str, value: float) -> tuple[str, bool]:
    """A number, written out only as far as it is one that can be written: an int may have hundreds of digits."""
    if abs(value) > MOST:
        return f"{name} is {'above 2^53' if value > 0 else 'below -2^53'}", True
    return f"{name} is {value}", not value >= 0


def _ended(totals: RequestTotals, longest: int) -> str:
    """As `_disagreement`, of counters against one another. Without any arrival the pod does not count them."""
    came, ended = totals.arrivals, totals.completions + totals.aborts
    if not came and not totals.completions:
        return ""
    if ended > came:
        return f"{ended} ended of {came} accepted requests"
    if came - ended > MOST_WAITING:
        return f"{came} accepted requests, {ended} ended"
    if longest > 0 and totals.uncached_prompt_tokens > came * longest:
        return f"{totals.uncached_prompt_tokens} prompt tokens of {came} requests"
    return ""


def _queued(reading: RuntimeState) -> str:
    """As `_ended`, of the queue: what waits was accepted and has not ended."""
    totals = reading.totals
    left = totals.arrivals - totals.completions - totals.aborts
    if totals.arrivals and reading.waiting > left:
        return f"{reading.waiting} waiting requests of {left} that were accepted and have not ended"
    return ""
