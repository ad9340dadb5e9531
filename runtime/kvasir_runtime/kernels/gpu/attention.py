"""Paged attention as one Triton kernel for prefill, chunks, decode and several query tokens a sequence, mixed at will.

All query heads of a key head, for BLOCK_Q tokens, are the rows of one product, so each tile of keys and values is read
once for the whole group and even decode has the 16 rows that tensor cores want. Few long sequences are split over more
programs; how often each one is follows from the lengths on the device, so the grid hangs on nothing but the numbers of
tokens and sequences and may be recorded in a graph. What has more than one split is merged by a second kernel.
Split parts are kept in float32; a part is its own softmax and the logarithm (base 2) of its sum.
Sources: Kwon et al. 2023; Dao et al. 2023 (split); Ringlein et al. 2025, arXiv 2511.11581 (query blocks, fixed grid).
"""

import math
from dataclasses import dataclass
from functools import cache as memoised

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.options import options
from kvasir_runtime.kernels.spans import Spans

# A program should find at least this many tiles, or the merge costs more than the split gains.
_MIN_TILES = 2
_MAX_SPLITS = 32
_MAX_SCRATCH_BYTES = 64 << 20
# Programs per multiprocessor: that work is split into, and that a grid may have when most of them end at once.
_WANTED, _MOST = 3, 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """Launch parameters: rows of a product (query tokens times heads of a group), positions of a tile of the cache."""

    block_m: int
    tile: int
    num_warps: int
    num_stages: int


def tiles(head_dim: int, element_bytes: int, rows: int) -> Tiles:
    """The shipped choice. rows: query rows of the longest sequence, its tokens times heads per key head.

    Starting points from what is published for Hopper. float32 has half the tile or less.
    Keys wait for block ids, so the compiler spends two stages on each tile that is read ahead: 5 read two, 3 one.
    """
    tile = (32 if head_dim > 128 else 64) // (2 if element_bytes > 2 else 1)
    if rows <= 32:
        return Tiles(block_m=16 if rows <= 16 else 32, tile=tile, num_warps=4, num_stages=5)
    if element_bytes > 2:
        # Products of float32 are sums in registers: larger tiles spill.
        return Tiles(block_m=32, tile=16, num_warps=8, num_stages=3)
    if rows <= 256:
        return Tiles(block_m=64, tile=tile, num_warps=4, num_stages=3)
    return Tiles(block_m=128, tile=tile, num_warps=8, num_stages=3)


def launch(query: Tensor, cache: Tensor, spans: Spans, scale: float, window: int) -> Tensor:
    """kernels.attention with the shipped launch parameters."""
    rows = max(spans.query_lens) * (query.shape[1] // cache.shape[3])
    chosen = tiles(query.shape[2], query.element_size(), rows)
    return attend(query, cache, spans, scale, window, chosen, _processors(query.device))


def attend(
    query: Tensor, cache: Tensor, spans: Spans, scale: float, window: int, chosen: Tiles, processors: int
) -> Tensor:
    """kernels.attention with given launch parameters. processors: the programs that run at once decide on splitting."""
    (tokens, heads, head), (block_size, kv_heads) = query.shape, cache.shape[2:4]
    group, sequences = heads // kv_heads, len(spans.query_lens)
    block_m = max(chosen.block_m, triton.next_power_of_2(group))
    block_q = block_m // group
    one_block = max(spans.query_lens) <= block_q
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
    _attend[(blocks * kv_heads, splits)](
        query, cache, spans.block_tables, starts, lens, counts, out, parts, logs, scale * math.log2(math.e), window,
        sequences, splits, *query.stride()[:2], *cache.stride()[:4], spans.block_tables.stride(0),
        KV_HEADS=kv_heads, GROUP=group, BLOCK_M=block_m, BLOCK_Q=block_q, TILE=chosen.tile, BLOCK_SIZE=block_size,
        WINDOWED=window > 0, ONE_BLOCK=one_block, SPLIT=splits > 1, PRECISION=_precision(query.dtype), **shape,
        num_warps=chosen.num_warps, num_stages=chosen.num_stages, enable_fp_fusion=True,
    )  # fmt: skip
    if splits > 1:
        _merge[(tokens, heads)](
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
    _count_splits[(1,)](
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


@triton.jit
def _sequence_at(starts, index, num_sequences, BLOCK_Q: tl.constexpr):
    """The sequence that holds query block (BLOCK_Q 0: token) `index`: the last one that does not begin behind it.

    Each sequence has room for a block more than it may need, so blocks can be counted without a sum over sequences.
    """
    low = index * 0
    high = low + num_sequences
    while high - low > 1:
        middle = (low + high) // 2
        first = tl.load(starts + middle)
        if BLOCK_Q > 0:
            first = first // BLOCK_Q + middle
        inside = first <= index
        low = tl.where(inside, middle, low)
        high = tl.where(inside, high, middle)
    return low


@triton.jit(do_not_specialize=["num_sequences", "window", "wanted", "most"])
def _count_splits(
    starts, lens, counts, num_sequences, window, wanted, most,
    KV_HEADS: tl.constexpr, BLOCK_Q: tl.constexpr, TILE: tl.constexpr, MIN_TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Cut all sequences into pieces of equal length, such that there are about as many as wanted."""
    lanes = tl.arange(0, BLOCK)
    work = window * 0
    for base in range(0, num_sequences, BLOCK):
        here = base + lanes < num_sequences
        first = tl.load(starts + base + lanes, mask=here, other=0)
        num_queries = tl.load(starts + base + lanes + 1, mask=here, other=0) - first
        seen = tl.load(lens + base + lanes, mask=here, other=0)
        if window > 0:
            seen = tl.minimum(seen, window + num_queries - 1)
        work += tl.sum((seen + TILE - 1) // TILE * ((num_queries + BLOCK_Q - 1) // BLOCK_Q))
    piece = tl.maximum((work * KV_HEADS + wanted - 1) // wanted, MIN_TILES)
    for base in range(0, num_sequences, BLOCK):
        here = base + lanes < num_sequences
        first = tl.load(starts + base + lanes, mask=here, other=0)
        num_queries = tl.load(starts + base + lanes + 1, mask=here, other=0) - first
        seen = tl.load(lens + base + lanes, mask=here, other=0)
        if window > 0:
            seen = tl.minimum(seen, window + num_queries - 1)
        pieces = ((seen + TILE - 1) // TILE + piece - 1) // piece
        tl.store(counts + base + lanes, tl.minimum(tl.maximum(pieces, 1), most), mask=here)


@triton.jit
def _advance(
    total, sums, peaks, rows, cache, table, position, first_tile, last_tile, stop, log2_scale, window,
    values, block_stride, slot_stride,
    HEAD: tl.constexpr, PADDED: tl.constexpr, TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    MASKED: tl.constexpr, WINDOWED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take the tiles into the running softmax of all rows. Not MASKED: every row sees all positions of the tiles."""
    dims = tl.arange(0, PADDED)
    lanes = tl.arange(0, TILE)
    for tile in range(first_tile, last_tile):
        at = tile * TILE + lanes
        known = at < stop
        if BLOCK_SIZE % TILE == 0:
            block = tl.load(table + (tile * TILE) // BLOCK_SIZE)
        elif MASKED:
            block = tl.load(table + at // BLOCK_SIZE, mask=known, other=0)
        else:
            block = tl.load(table + at // BLOCK_SIZE)
        places = block * block_stride + (at % BLOCK_SIZE) * slot_stride
        inside = dims < HEAD
        mask = inside[None, :] & (known | (not MASKED))[:, None]
        keys = tl.load(cache + places[:, None] + dims[None, :], mask=mask, other=0.0)
        scores = tl.dot(rows, tl.trans(keys), input_precision=PRECISION) * log2_scale
        if MASKED:
            seen = at[None, :] <= position[:, None]
            if WINDOWED:
                seen = seen & (at[None, :] > position[:, None] - window)
            scores = tl.where(seen, scores, float("-inf"))
        peak = tl.maximum(peaks, tl.max(scores, 1))
        weights = tl.exp2(scores - peak[:, None])
        shrink = tl.exp2(peaks - peak)
        content = tl.load(cache + values + places[:, None] + dims[None, :], mask=mask, other=0.0)
        sums = sums * shrink + tl.sum(weights, 1)
        total = tl.dot(weights.to(content.dtype), content, total * shrink[:, None], input_precision=PRECISION)
        peaks = peak
    return total, sums, peaks


# What changes from step to step must not be compiled for: serving would wait for the compiler.
@triton.jit(do_not_specialize=["num_sequences", "window", "splits", "table_stride"])
def _attend(
    query, cache, tables, starts, lens, counts, out, parts, logs, log2_scale, window, num_sequences, splits,
    token_stride, query_head_stride, values, block_stride, slot_stride, head_stride, table_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr, TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOWED: tl.constexpr, ONE_BLOCK: tl.constexpr, SPLIT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of query tokens, one key head, one split."""
    kv_head = tl.program_id(0) % KV_HEADS
    # The last blocks of a prompt see most, so they start first.
    index = (tl.num_programs(0) - 1 - tl.program_id(0)) // KV_HEADS
    sequence = index if ONE_BLOCK else _sequence_at(starts, index, num_sequences, BLOCK_Q)
    start = tl.load(starts + sequence)
    num_queries = tl.load(starts + sequence + 1) - start
    skipped = 0 if ONE_BLOCK else (index - start // BLOCK_Q - sequence) * BLOCK_Q
    num_splits = tl.load(counts + sequence) if SPLIT else 1
    split = tl.program_id(1)
    if skipped >= num_queries or split >= num_splits:
        return
    rows = tl.arange(0, BLOCK_M)
    token = skipped + rows // GROUP
    valid = (rows // GROUP < BLOCK_Q) & (token < num_queries)
    head = kv_head * GROUP + rows % GROUP
    dims = tl.arange(0, PADDED)
    store = valid[:, None] & (dims < HEAD)[None, :]
    place = (start + token).to(tl.int64) * token_stride + head * query_head_stride
    q = tl.load(query + place[:, None] + dims[None, :], mask=store, other=0.0)

    origin = tl.load(lens + sequence) - num_queries
    stop = origin + tl.minimum(num_queries, skipped + BLOCK_Q)
    first_tile = tl.maximum(origin + skipped - window + 1, 0) // TILE if WINDOWED else 0
    last_tile = (stop + TILE - 1) // TILE
    if SPLIT:
        piece = (last_tile - first_tile + num_splits - 1) // num_splits
        first_tile += split * piece
        last_tile = tl.minimum(first_tile + piece, last_tile)
    sums = tl.full((BLOCK_M,), 0, tl.float32)
    # Low, but finite: where a row sees nothing, differences of peaks stay numbers.
    peaks = tl.full((BLOCK_M,), -1e30, tl.float32)
    total = tl.full((BLOCK_M, PADDED), 0, tl.float32)
    keys = cache + kv_head * head_stride
    table = tables + sequence.to(tl.int64) * table_stride
    if not ONE_BLOCK and not WINDOWED:
        full = tl.minimum((origin + skipped + 1) // TILE, last_tile)
        total, sums, peaks = _advance(
            total, sums, peaks, q, keys, table, origin + token, first_tile, full, stop, log2_scale, window,
            values, block_stride, slot_stride,
            HEAD, PADDED, TILE, BLOCK_SIZE, False, False, PRECISION,
        )  # fmt: skip
        first_tile = tl.maximum(first_tile, full)
    total, sums, peaks = _advance(
        total, sums, peaks, q, keys, table, origin + token, first_tile, last_tile, stop, log2_scale, window,
        values, block_stride, slot_stride,
        HEAD, PADDED, TILE, BLOCK_SIZE, True, WINDOWED, PRECISION,
    )  # fmt: skip
    result = total / tl.where(sums > 0, sums, 1.0)[:, None]
    target = (start + token).to(tl.int64) * (KV_HEADS * GROUP) + head
    if num_splits == 1:
        tl.store(out + target[:, None] * HEAD + dims[None, :], result.to(out.dtype.element_ty), mask=store)
    else:
        target = target * splits + split
        tl.store(parts + target[:, None] * HEAD + dims[None, :], result, mask=store)
        tl.store(logs + target, tl.where(sums > 0, peaks + tl.log2(sums), float("-inf")), mask=valid)


@triton.jit(do_not_specialize=["num_sequences", "splits"])
def _merge(
    parts, logs, starts, counts, out, num_sequences, splits,
    HEADS: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, ROOM: tl.constexpr,
):  # fmt: skip
    """One head of one token: the parts of its splits, weighted by the sums that they stand for."""
    token = tl.program_id(0)
    num_splits = tl.load(counts + _sequence_at(starts, token, num_sequences, 0))
    if num_splits == 1:
        return  # written by _attend itself
    place = token.to(tl.int64) * HEADS + tl.program_id(1)
    split = tl.arange(0, ROOM)
    dims = tl.arange(0, PADDED)
    log = tl.load(logs + place * splits + split, mask=split < num_splits, other=float("-inf"))
    weights = tl.exp2(log - tl.max(log, 0))
    mask = (split < num_splits)[:, None] & (dims < HEAD)[None, :]
    part = tl.load(parts + (place * splits + split)[:, None] * HEAD + dims[None, :], mask=mask, other=0.0)
    result = tl.sum(part * weights[:, None], 0) / tl.sum(weights, 0)
    tl.store(out + place * HEAD + dims, result.to(out.dtype.element_ty), mask=dims < HEAD)
