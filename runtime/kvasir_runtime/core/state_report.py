"""The scheduler's share of the `/state` document, from what it holds after a step. Called by the scheduler alone."""

from collections.abc import Collection

import msgspec

from kvasir_api.state import KvHostState, KvState, RequestTotals, RuntimeState, SpeculationState, TtftForecast
from kvasir_runtime.core.blocks import BlockPool
from kvasir_runtime.core.kinds.interface import RequestKind
from kvasir_runtime.core.limits import Limits
from kvasir_runtime.core.throughput import Throughput
from kvasir_runtime.core.waiting_queue import WaitingQueue


def filled(
    state: RuntimeState,
    *,
    step: int,
    sequence_number: int,
    limits: Limits,
    pool: BlockPool,
    waiting: WaitingQueue,
    running: Collection[RequestKind],
    totals: RequestTotals,
    throughput: Throughput,
    ttft: TtftForecast,
    kv_host: KvHostState,
    speculation: SpeculationState,
) -> RuntimeState:
    """state with the cache, the queue and the counters filled in; its other fields stay as given."""
    return msgspec.structs.replace(
        state,
        step=step,
        sequence_number=sequence_number,
        kv=_kv_state(limits, pool),
        kv_host=kv_host,
        running=sum(kind.num_rows for kind in running),
        waiting=len(waiting),
        waiting_uncached_tokens=waiting.uncached_tokens,
        remaining_tokens=sum(kind.remaining for kind in running),
        expected_tokens=_expected_tokens(totals, waiting, running),
        reused_tokens=limits.tokens_of(pool.num_reused),
        max_sequences=limits.max_sequences,
        max_model_len=limits.max_model_len,
        totals=totals,
        rates=throughput.rates,
        decoded=throughput.decoded,
        work=throughput.work,
        ttft=ttft,
        speculation=msgspec.structs.replace(speculation, why=state.speculation.why or speculation.why),
    )


def _kv_state(limits: Limits, pool: BlockPool) -> KvState:
    """Parts are rounded at their ends, so that they add up to the capacity."""
    used = pool.num_pinned + pool.num_cached
    pinned, ended, capacity = (limits.tokens_of(count) for count in (pool.num_pinned, used, limits.num_blocks))
    return KvState(
        capacity_tokens=capacity,
        pinned_tokens=pinned,
        cached_tokens=ended - pinned,
        free_tokens=capacity - ended,
        block_size=limits.block_size,
        capacity_bytes=limits.num_blocks * limits.block_bytes,
        pinned_bytes=pool.num_pinned * limits.block_bytes,
        cached_bytes=pool.num_cached * limits.block_bytes,
        free_bytes=pool.num_free * limits.block_bytes,
    )


def _expected_tokens(totals: RequestTotals, waiting: WaitingQueue, running: Collection[RequestKind]) -> int:
    """What running and waiting requests will probably still generate: the mean of those that ended, or less where their
    bound is near.

    An answer that has gone on for long is not nearer to its end: lengths of answers are taken to have no memory. Before
    the first answer only the bounds of those that run are known.
    """
    ended = totals.completions + totals.aborts
    if not ended:
        return sum(kind.remaining for kind in running)
    given = totals.generation_tokens - sum(len(kind.sequence.tokens) - kind.request.given_tokens for kind in running)
    mean = max(1, -(-given // ended))
    return sum(min(kind.remaining, mean) for kind in running) + mean * len(waiting)
