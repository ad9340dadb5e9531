"""Whether a reading can be true of any pod: a document that contradicts itself is no reading, as if the pod was silent.

Called by `window.py` for each reading of a tick. It knows the contract of `/state` and nothing of the service.
"""

from collections.abc import Iterable
from operator import attrgetter
from typing import Final

from kvasir_api.state import DecodeTotals, KvState, MeasuredRates, RequestTotals, RuntimeState, ServedTotals

MOST_WAITING: Final = 1_000_000
"""Requests: far beyond the queue that any runtime keeps."""
MOST_TOKENS_PER_S: Final = 1e8
MOST_STEP_S: Final = 3_600.0
MOST: Final = 2.0**53
"""Of any number: up to it a float holds each integer. JSON knows no bound, and larger ones do not become floats."""
LOAD: Final = ("running", "waiting", "waiting_uncached_tokens", "max_sequences", "max_model_len")

_KV: Final = attrgetter(*KvState.__struct_fields__)
_TOTALS: Final = attrgetter(*RequestTotals.__struct_fields__)
_RATES: Final = attrgetter(*MeasuredRates.__struct_fields__)
_DECODED: Final = attrgetter(*DecodeTotals.__struct_fields__)
_SERVED: Final = attrgetter(*ServedTotals.__struct_fields__)
_LOAD: Final = attrgetter(*LOAD)


def contradiction(reading: RuntimeState) -> str:
    """What in a reading cannot be true, for a person; empty when it may be. Zeros and absent fields always may be."""
    said = "" if _in_range(reading) else next((said for said, wrong in _ranges(reading) if wrong), "")
    return said or _disagreement(reading)


def _in_range(reading: RuntimeState) -> bool:
    """Whether nothing is out of range: what `_ranges` says, in a fraction of its time. NaN is in no range."""
    numbers = (
        *_KV(reading.kv),
        *_TOTALS(reading.totals),
        *_RATES(reading.rates),
        *_DECODED(reading.decoded),
        *_SERVED(reading.served),
        *_LOAD(reading),
    )
    if not all(0 <= number <= MOST for number in numbers):
        return False
    rates = reading.rates
    return rates.prefill_tokens_per_s <= MOST_TOKENS_PER_S and rates.decode_step_s <= MOST_STEP_S


def _disagreement(reading: RuntimeState) -> str:
    """Which numbers, each possible by itself, cannot be true together."""
    kv, totals, expired = reading.kv, reading.totals, reading.ttft.expired
    parts = kv.pinned_tokens + kv.cached_tokens + kv.free_tokens
    whole = bool(kv.cached_tokens or kv.free_tokens)
    longest = reading.max_model_len
    return next(
        (
            said
            for said, wrong in (
                (
                    f"{kv.pinned_tokens} pinned tokens of {kv.capacity_tokens}",
                    parts > kv.capacity_tokens + kv.block_size,
                ),
                (
                    f"{kv.capacity_tokens} tokens of KV cache, of which {parts} are accounted for",
                    whole and parts < kv.capacity_tokens - kv.block_size,
                ),
                (
                    f"{reading.running} running requests, at most {reading.max_sequences} sequences",
                    0 < reading.max_sequences < reading.running,
                ),
                (f"{reading.waiting} waiting requests", reading.waiting > MOST_WAITING),
                (
                    f"{reading.waiting_uncached_tokens} tokens of {reading.waiting} waiting prompts",
                    longest > 0 and reading.waiting_uncached_tokens > reading.waiting * longest,
                ),
                (f"{expired} expired requests of {totals.aborts} aborted ones", not 0 <= expired <= totals.aborts),
                *_ended(totals, longest),
            )
            if wrong
        ),
        "",
    )


def _ranges(reading: RuntimeState) -> Iterable[tuple[str, bool]]:
    """Each number with whether it is negative, not finite or beyond MOST; speeds beyond any device."""
    rates, decoded, totals = reading.rates, reading.decoded, reading.totals
    for where in (reading.kv, totals, rates, decoded, reading.served):
        for name in where.__struct_fields__:
            yield _range(name, getattr(where, name))
    for name in LOAD:
        yield _range(name, getattr(reading, name))
    speed, step = rates.prefill_tokens_per_s, rates.decode_step_s
    yield f"prefill_tokens_per_s is {speed:g}", speed > MOST_TOKENS_PER_S
    yield f"decode_step_s is {step:g}", step > MOST_STEP_S


def _range(name: str, value: float) -> tuple[str, bool]:
    """A number, written out only as far as it is one that can be written: an int may have hundreds of digits."""
    if abs(value) > MOST:
        return f"{name} is {'above 2^53' if value > 0 else 'below -2^53'}", True
    return f"{name} is {value}", not value >= 0


def _ended(totals: RequestTotals, longest: int) -> Iterable[tuple[str, bool]]:
    """Counters against one another. Without any arrival the pod does not count them."""
    if not totals.arrivals and not totals.completions:
        return
    yield (
        f"{totals.completions + totals.aborts} ended of {totals.arrivals} accepted requests",
        totals.completions + totals.aborts > totals.arrivals,
    )
    yield (
        f"{totals.arrivals} accepted requests, {totals.completions + totals.aborts} ended",
        totals.arrivals - totals.completions - totals.aborts > MOST_WAITING,
    )
    yield (
        f"{totals.uncached_prompt_tokens} prompt tokens of {totals.arrivals} requests",
        longest > 0 and totals.uncached_prompt_tokens > totals.arrivals * longest,
    )
