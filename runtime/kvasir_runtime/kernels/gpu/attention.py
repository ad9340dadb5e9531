"""Paged attention as one Triton kernel for prefill, chunks, decode and several query tokens a sequence, mixed at will.

All query heads of a key head, for BLOCK_Q tokens, are the rows of one product, so each tile of keys and values is read
once for the whole group and even decode has the 16 rows that tensor cores want. Few long sequences are split over more
programs; how often each one is follows from the lengths on the device, so the grid hangs on nothing but the numbers of
tokens and sequences and may be recorded in a graph. What has more than one split is merged by a second kernel.
Split parts are kept in float32; a part is its own softmax and the logarithm (base 2) of its sum.
Sources: Kwon et al. 2023; Dao et al. 2023 (split); Ringlein et al. 2025, arXiv 2511.11581 (query blocks, fixed grid).
"""

import math
from functools import cache as memoised

import torch
import triton
from torch import Tensor

from kvasir_runtime.kernels.gpu import attention_kernels, attention_tiles, cache_rows
from kvasir_runtime.kernels.gpu.attention_tiles import Tiles
from kvasir_runtime.kernels.gpu.cards import card_of
from kvasir_runtime.kernels.gpu.options import options
from kvasir_runtime.kernels.spans import Spans

# A program should find at least this many tiles, or the merge costs more than the split gains.
_MIN_TILES = 2
_MAX_SPLITS = 32
_MAX_SCRATCH_BYTES = 64 << 20
# Programs per multiprocessor: that work is split into, and that a grid may have when most of them end at once.
_WANTED, _MOST = 3, 16
_LOG2E = math.log2(math.e)


def launch(
    query: Tensor,
    cache: Tensor,
    spans: Spans,
    scale: float,
    window: int,
    softcap: float = 0.0,
    sinks: Tensor | None = None,
) -> Tensor:
    """kernels.attention with the shipped launch parameters."""
    rows = spans.longest_query * (query.shape[1] // cache.shape[3])
    card = card_of(query.device)
    chosen = attention_tiles.choose(card.name, query.shape[2], query.element_size(), rows)
    return attend(query, cache, spans, scale, window, softcap, sinks, chosen, _processors(query.device))


def attend(
    query: Tensor,
    cache: Tensor,
    spans: Spans,
    scale: float,
    window: int,
    softcap: float,
    sinks: Tensor | None,
    chosen: Tiles,
    processors: int,
) -> Tensor:
    """kernels.attention with given launch parameters. processors: the programs that run at once decide on splitting.

    The host reads no length: the grid follows from the numbers of tokens, sequences and columns of the table.
    """
    (tokens, heads, head), (block_size, kv_heads, row) = query.shape, cache.shape[2:]
    group, sequences = heads // kv_heads, spans.num_sequences
    block_m = max(chosen.block_m, triton.next_power_of_2(group))
    block_q = block_m // group
    one_block = spans.longest_query <= block_q
    blocks = sequences if one_block else tokens // block_q + sequences
    longest = spans.block_tables.shape[1] * block_size
    splits = most_splits(blocks * kv_heads, -(-longest // chosen.tile), tokens * heads * head * 4, processors)
    starts, lens = spans.lengths()
    sizes = {"KV_HEADS": kv_heads, "BLOCK_Q": block_q, "TILE": chosen.tile}
    counts = starts
    if splits > 1:
        # The mean work of a program, not its longest, decides: keyed by all that enters.
        key = ("splits", window, processors, splits, *sizes.values())
        counts = spans.once(key, lambda: _count(starts, lens, window, processors * _WANTED, splits, sizes))
    out = query.new_empty((tokens, heads * head))
    parts = torch.empty((tokens, heads, splits, head) if splits > 1 else (1,), dtype=torch.float32, device=query.device)
    logs = torch.empty((tokens, heads, splits) if splits > 1 else (1,), dtype=torch.float32, device=query.device)
    shape = {"HEAD": head, "PADDED": triton.next_power_of_2(head)}
    table_stride = spans.block_tables.stride(0)
    scales, sunk = cache_rows.scales(cache), logs if sinks is None else sinks
    factor, cap = (scale * _LOG2E, 0.0) if not softcap else (scale / softcap * 2 * _LOG2E, softcap * _LOG2E)
    attention_kernels.attend[(blocks * kv_heads, splits)](
        query, cache, scales, spans.block_tables, starts, lens, counts, sunk, out, parts, logs,
        factor, cap, window, sequences, splits, *query.stride()[:2], cache.stride(0), table_stride,
        KV_HEADS=kv_heads, GROUP=group, ROW=row, BLOCK_M=block_m, BLOCK_Q=block_q, TILE=chosen.tile,
        BLOCK_SIZE=block_size, WINDOWED=window > 0, ONE_BLOCK=one_block, SPLIT=splits > 1, KIND=cache_rows.kind(cache),
        CAPPED=softcap > 0, SINKS=sinks is not None, PRECISION=_precision(query.dtype), **shape,
        num_warps=chosen.num_warps, num_stages=chosen.num_stages, enable_fp_fusion=True,
    )  # fmt: skip
    if splits > 1:
        attention_kernels.merge[(tokens, heads)](
            parts, logs, starts, counts, out, sequences, splits, HEADS=heads, ROOM=_MAX_SPLITS, **shape, **options(2048)
        )
    return out


def most_splits(programs: int, tiles_of_longest: int, part_bytes: int, processors: int) -> int:
    """Splits that a launch makes room for, a power of two. programs: without splits; part_bytes: scratch of one."""
    room = min(processors * _MOST // programs, tiles_of_longest // _MIN_TILES, _MAX_SCRATCH_BYTES // part_bytes)
    return 1 << (max(1, min(room, _MAX_SPLITS)).bit_length() - 1)


def _count(starts: Tensor, lens: Tensor, window: int, wanted: int, most: int, sizes: dict[str, int]) -> Tensor:
    """Splits of each sequence, `most` at most, about `wanted` in all: (sequences,) int32."""
    counts = torch.empty_like(lens)
    attention_kernels.count_splits[(1,)](
        starts, lens, counts, lens.shape[0], window, wanted, most,
        **sizes, MIN_TILES=_MIN_TILES, BLOCK=256, **options(512),
    )  # fmt: skip
    return counts


def _precision(dtype: torch.dtype) -> str:
    """float32 is what was asked for, not the 10 bits that tensor cores make of it."""
    return "ieee" if dtype == torch.float32 else "tf32"


@memoised
def _processors(device: torch.device) -> int:
    """Multiprocessors of a card. The interpreter has none: a number that makes it split long sequences."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
