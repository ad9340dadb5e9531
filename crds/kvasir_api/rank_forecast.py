"""What options come to in memory: of one process, and of ranks that share a KV cache, by what the one with most of a model holds.

Called by the operator's forecast and by `kvasir plan`, and by a start, which cuts its stages by it. Pure.
"""

from dataclasses import replace
from typing import Final

from kvasir_api import attention_heads, forecast, layouts, state_copies
from kvasir_api.forecast import PROCESS_BYTES, MemoryFit, RankPart
from kvasir_api.layouts import Layout, Wanted
from kvasir_api.model_shape import ModelShape
from kvasir_api.multi_node import option_of
from kvasir_api.options import RuntimeOptions
from kvasir_api.speculation import NO_DRAFTER, DraftModelSize, draft_model
from kvasir_api.stored_bits import Compute

DEVICE: Final = "cpu"
"""Where stages are computed."""


def fit(
    shape: ModelShape,
    options: RuntimeOptions,
    dtype: str,
    memory_bytes: int,
    *,
    device: Compute | None,
    max_model_len: int,
    max_batch_tokens: int,
    copies_bytes: int,
    drafter: DraftModelSize = NO_DRAFTER,
    cache_limit_bytes: int | None = None,
) -> MemoryFit:
    """Of the processes that share a cache. memory_bytes: of all of them. device: None counts no process.

    It is that of the rank with most, in its part of the memory; the weights are those of all. Beside a draft model, which the first rank
    has, all count as one process. Raises ValueError where layers cannot be divided so.
    """
    part = part_of_rank(shape, options, dtype, memory_bytes)
    sharing = options.sharing_ranks
    if part is not None:
        memory_bytes //= sharing
        cache_limit_bytes = None if cache_limit_bytes is None else cache_limit_bytes // sharing
        sharing = 1
    found = forecast.fit(
        shape,
        memory_bytes=memory_bytes,
        memory_fraction=options.memory_fraction,
        dtype=dtype,
        max_model_len=max_model_len,
        max_batch_tokens=max_batch_tokens,
        process_bytes=(sharing * PROCESS_BYTES[device] if device else 0) + copies_bytes,
        kv_cache_dtype=options.kv_cache_dtype,
        quantization=options.quantization,
        cache_limit_bytes=cache_limit_bytes,
        weights_host_bytes=options.weights_host_bytes,
        drafter=drafter,
        max_sequences=options.max_sequences,
        part=part,
    )
    if part is None:
        return found
    return replace(
        found,
        weights_bytes=shape.weights_bytes(dtype, options.quantization),
        kv_bytes_per_token=shape.kv_bytes_per_token(found.kv_dtype),
        message=at_most(options) + found.message,
    )


def part_of_rank(shape: ModelShape, options: RuntimeOptions, dtype: str, memory_bytes: int) -> RankPart | None:
    """What the rank with most holds, each with an equal part of the memory; None of one process, and beside a draft model.

    Raises ValueError with what a start says of layers that cannot be divided so.
    """
    if options.sharing_ranks == 1 or draft_model(options.speculation):
        return None
    layout = Layout(tensor=options.tensor_parallel_size, stages=options.pipeline_parallel_size)
    try:
        if shape.keeps_nothing:
            raise ValueError("encoders are computed by one process")
        attention_heads.part(shape.heads, shape.kv_heads, ranks=layout.tensor)
        return layouts.largest(shape, wanted(shape, options, dtype, memory_bytes // options.sharing_ranks), layout)
    except ValueError as error:
        raise ValueError(f"{option_of(layout.tensor, layout.stages, 1)} is not possible: {error}") from error


def at_most(options: RuntimeOptions) -> str:
    """Of which rank a forecast is, before its numbers."""
    return f"at the rank with most of {options.sharing_ranks} "


def of_one(shape: ModelShape, options: RuntimeOptions, dtype: str, memory_bytes: int) -> tuple[MemoryFit, int]:
    """The forecast of one process with so much memory, whose sequence_tokens are all that the cache has to hold, and its room for
    weights and cache. The runtime decides by it whether memory holds a cut.
    """
    one = fit(
        shape,
        options.model_copy(update={"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "weights_host_bytes": 0}),
        dtype,
        memory_bytes,
        device=DEVICE,
        max_model_len=options.max_model_len,
        max_batch_tokens=options.max_batch_tokens or forecast.BATCH_TOKENS[DEVICE],
        copies_bytes=copies_of_states(shape, options, dtype, DEVICE),
    )
    held = replace(one, sequence_tokens=max(one.sequence_tokens, options.kv_cache_tokens))
    return held, layouts.room_bytes(one, DEVICE, memory_bytes, options.memory_fraction)


def wanted(shape: ModelShape, options: RuntimeOptions, dtype: str, memory_bytes: int) -> Wanted:
    """Of layouts of processes with so much memory each."""
    one, room_bytes = of_one(shape, options, dtype, memory_bytes)
    return Wanted(
        room_bytes=room_bytes,
        one=one,
        parts=layouts.weight_parts(shape, dtype, options.quantization),
        max_sequences=options.max_sequences,
        longest=options.max_model_len or shape.max_positions,
    )


def copies_of_states(shape: ModelShape, options: RuntimeOptions, dtype: str, device: Compute) -> int:
    """Bytes of the copies of states of sequences with drafts, which a start counts before the cache gets the rest."""
    block_bytes = shape.block_bytes(
        dtype if options.kv_cache_dtype == "auto" else options.kv_cache_dtype, options.block_size
    )
    on_cpu, ranks = device == "cpu", options.ranks
    return state_copies.expected_bytes(shape.attentions, block_bytes, options.speculation, on_cpu=on_cpu, ranks=ranks)
