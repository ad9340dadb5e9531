"""The kernels of paged attention: the plan of its pieces, attention itself, and the merge of what was split.

Launched by `attention`, which explains the cuts. Tensors' shapes are those of `kernels.attention`.
A plan is int32: num_pieces of block * ROOM + split, -1 behind the last; then of each sequence how often its blocks are
split; then of each its first piece.
"""

import triton
import triton.language as tl

from kvasir_runtime.kernels.gpu.kv_quant import FLOAT8, INT4, INT8

# Splits of one block at most, and elements of a sequence in a plan.
ROOM = tl.constexpr(64)


@triton.jit
def sequence_at(starts, index, num_sequences, BLOCK_Q: tl.constexpr):
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


@triton.jit
def _of_sequences(starts, lens, index, num_sequences, reach, BLOCK_Q: tl.constexpr, TILE: tl.constexpr):
    """First query token, blocks of queries, and tiles that such a block sees at most, 0 past the last sequence."""
    here = index < num_sequences
    first = tl.load(starts + index, mask=here, other=0)
    num_queries = tl.load(starts + index + 1, mask=here, other=0) - first
    seen = tl.load(lens + index, mask=here, other=0)
    if reach > 0:
        seen = tl.minimum(seen, reach + num_queries - 1)
    return first, (num_queries + BLOCK_Q - 1) // BLOCK_Q, (seen + TILE - 1) // TILE


@triton.jit(
    do_not_specialize=["num_sequences", "num_pieces", "reach", "wanted"],
    do_not_specialize_on_alignment=["starts", "lens", "plan"],
)
def make_plan(
    starts, lens, plan, num_sequences, num_pieces, reach, wanted,
    KV_HEADS: tl.constexpr, BLOCK_Q: tl.constexpr, TILE: tl.constexpr, ONE_BLOCK: tl.constexpr,
    MIN_TILES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Cut all sequences into pieces of equal length, about as many as wanted, and never more than wanted and blocks."""
    lanes = tl.arange(0, BLOCK)
    work = reach * 0
    for base in range(0, num_sequences, BLOCK):
        _, blocks, tiles = _of_sequences(starts, lens, base + lanes, num_sequences, reach, BLOCK_Q, TILE)
        work += tl.sum(tiles * blocks)
    piece = tl.maximum((work * KV_HEADS + wanted - 1) // wanted, MIN_TILES)
    total = reach * 0
    for base in range(0, num_sequences, BLOCK):
        index = base + lanes
        first, blocks, tiles = _of_sequences(starts, lens, index, num_sequences, reach, BLOCK_Q, TILE)
        splits = tl.minimum(tl.maximum((tiles + piece - 1) // piece, 1), ROOM)
        pieces = splits * blocks
        begin = total + tl.cumsum(pieces, 0) - pieces
        tl.store(plan + num_pieces + index, splits, mask=index < num_sequences)
        tl.store(plan + num_pieces + num_sequences + index, begin, mask=index < num_sequences)
        block = index if ONE_BLOCK else first // BLOCK_Q + index
        for nth in range(tl.max(pieces)):
            tl.store(plan + begin + nth, (block + nth // splits) * ROOM + nth % splits, mask=nth < pieces)
        total += tl.sum(pieces)
    for rest in range(total, num_pieces, BLOCK):
        tl.store(plan + rest + lanes, -1, mask=rest + lanes < num_pieces)


@triton.jit
def _queries(
    query, valid,
    HEAD: tl.constexpr, PADDED: tl.constexpr, TAIL: tl.constexpr, PADDED_TAIL: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The rows that pointers point at: their first numbers and their last TAIL, which are the first where TAIL is 0."""
    dims, rest = tl.arange(0, PADDED), tl.arange(0, PADDED_TAIL)
    rows = tl.load(query[:, None] + dims[None, :], mask=valid[:, None] & (dims < HEAD)[None, :], other=0.0)
    if KIND == FLOAT8 and rows.dtype == tl.bfloat16:
        rows = rows.to(tl.float16)  # what floats of 8 bits become in one instruction
    tails = rows
    if TAIL > 0:
        tail_mask = valid[:, None] & (rest < TAIL)[None, :]
        tails = tl.load(query[:, None] + (HEAD + rest)[None, :], mask=tail_mask, other=0.0).to(rows.dtype)
    return rows, tails


@triton.jit
def _scores(
    rows, keys, tails, key_tails, key_scales, log2_scale, cap,
    TAIL: tl.constexpr, KIND: tl.constexpr, CAPPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Of each row with each key, times log2(e): (rows, positions). log2_scale, cap: as `attend` makes them."""
    scores = tl.dot(rows, tl.trans(keys.to(rows.dtype)), input_precision=PRECISION)
    if TAIL > 0:
        scores = tl.dot(tails, tl.trans(key_tails.to(tails.dtype)), scores, input_precision=PRECISION)
    if KIND >= INT8:
        scores *= key_scales[None, :]
    scores *= log2_scale
    if CAPPED:
        # cap * tanh(x), from 2^(2 x log2 e): where that is infinite or nothing, the cap is reached.
        scores = cap - 2.0 * cap / (tl.exp2(scores) + 1.0)
    return scores


@triton.jit
def _add(total, weights, content, scales, KIND: tl.constexpr, PRECISION: tl.constexpr, WIDE: tl.constexpr):
    """total + weights x content; WIDE is the type of the product."""
    if KIND >= INT8:
        if tl.float16 == WIDE:
            # Small scales would leave float16's range as factors of the weights.
            content = (content.to(tl.float32) * scales[:, None]).to(WIDE)
        else:
            weights = weights * scales[None, :]
    return tl.dot(weights.to(WIDE), content.to(WIDE), total, input_precision=PRECISION)


@triton.jit
def _first_seen(position, window, chunk, WINDOWED: tl.constexpr, CHUNKED: tl.constexpr):
    """First position that the query at a position sees."""
    first = position * 0
    if WINDOWED:
        first = tl.maximum(position - window + 1, 0)
    if CHUNKED:
        first = tl.maximum(first, position // chunk * chunk)
    return first


@triton.jit
def _numbers(rows, dims, mask, KIND: tl.constexpr):
    """(positions, dims) of what rows point at; of INT4 the odd integers that their scale is to be multiplied by."""
    if KIND == INT4:
        codes = tl.load(rows + (dims // 2)[None, :], mask=mask, other=0).to(tl.int32)
        numbers = (((codes >> (dims % 2 * 4)[None, :]) & 15) * 2 - 15).to(tl.float32)
    else:
        numbers = tl.load(rows + dims[None, :], mask=mask, other=0.0)
    return numbers


@triton.jit
def _advance(
    total, sums, peaks, rows, tails, slope, cache, scales, table, position, first, begin, first_tile, last_tile, jump,
    gap, stop, log2_scale, cap, values, block_stride,
    HEAD: tl.constexpr, PADDED: tl.constexpr, TAIL: tl.constexpr, PADDED_TAIL: tl.constexpr, LATENT: tl.constexpr,
    TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr, SLOT: tl.constexpr, MASKED: tl.constexpr, LIMITED: tl.constexpr,
    KIND: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Take the tiles into the running softmax of all rows. Not MASKED: every row sees all positions of the tiles.

    From `jump` on, tiles are those `gap` further: what lies between was taken without masks. LIMITED: a row sees from
    its `first` on, and no row anything before `begin`, where blocks may be another sequence's by now.
    SLOT: elements from a position to the next one of its block, which the compiler must know to load whole words.
    tails: the last TAIL numbers of the queries, none where TAIL is 0. LATENT: keys are their own values.
    slope: (rows,), times log2(e), where SLOPED.
    """
    dims = tl.arange(0, PADDED)
    rest = tl.arange(0, PADDED_TAIL)
    lanes = tl.arange(0, TILE)
    for step in range(first_tile, last_tile):
        tile = tl.where(step < jump, step, step + gap) if MASKED else step
        at = tile * TILE + lanes
        known = at < stop
        if LIMITED:
            known = known & (at >= begin)
        if BLOCK_SIZE % TILE == 0:
            block = tl.load(table + (tile * TILE) // BLOCK_SIZE).to(tl.int64)
        elif MASKED:
            block = tl.load(table + at // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        else:
            block = tl.load(table + at // BLOCK_SIZE).to(tl.int64)
        places = block * block_stride + (at % BLOCK_SIZE) * SLOT
        inside = dims < HEAD
        mask = inside[None, :] & (known | (not MASKED))[:, None]
        if KIND >= INT8:
            words = (places + (HEAD // 2 if KIND == INT4 else HEAD + TAIL)) // 4
            key_scales = tl.load(scales + words, mask=known, other=0.0)
            value_scales = tl.load(scales + values // 4 + words, mask=known, other=0.0)
        else:
            key_scales, value_scales = known, known  # which nothing reads
        keys = _numbers(cache + places[:, None], dims, mask, KIND)
        key_tails = keys  # which nothing reads where TAIL is 0
        if TAIL > 0:
            tail_mask = (rest < TAIL)[None, :] & (known | (not MASKED))[:, None]
            key_tails = tl.load(cache + places[:, None] + (HEAD + rest)[None, :], mask=tail_mask, other=0.0)
        scores = _scores(rows, keys, tails, key_tails, key_scales, log2_scale, cap, TAIL, KIND, CAPPED, PRECISION)
        if SLOPED:
            scores += slope[:, None] * (at[None, :] - position[:, None]).to(tl.float32)
        if MASKED:
            seen = at[None, :] <= position[:, None]
            if LIMITED:
                seen = seen & (at[None, :] >= first[:, None])
            scores = tl.where(seen, scores, float("-inf"))
        peak = tl.maximum(peaks, tl.max(scores, 1))
        weights = tl.exp2(scores - peak[:, None])
        shrink = tl.exp2(peaks - peak)
        content = keys
        if not LATENT:
            content = _numbers(cache + values + places[:, None], dims, mask, KIND)
        sums = sums * shrink + tl.sum(weights, 1)
        total = _add(total * shrink[:, None], weights, content, value_scales, KIND, PRECISION, rows.dtype)
        peaks = peak
    return total, sums, peaks


@triton.jit
def _slope(slopes, head, valid, SLOPED: tl.constexpr):
    """Of each row, times log2(e); 0 without, which nothing reads."""
    slope = head.to(tl.float32) * 0.0
    if SLOPED:
        slope = tl.load(slopes + head, mask=valid, other=0.0) * 1.4426950408889634
    return slope


# What changes from step to step must not be compiled for: serving would wait for the compiler. Nor must where lengths
# begin, which are slices of what one copy brought.
@triton.jit(
    do_not_specialize=["num_sequences", "num_pieces", "window", "chunk", "table_stride"],
    do_not_specialize_on_alignment=["tables", "starts", "lens", "plan", "sinks", "slopes"],
)
def attend(
    query, cache, scales, tables, starts, lens, plan, sinks, slopes, out, parts, logs, log2_scale, cap, window, chunk,
    num_sequences, num_pieces, token_stride, query_head_stride, values, block_stride, table_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr, TAIL: tl.constexpr,
    PADDED_TAIL: tl.constexpr, LATENT: tl.constexpr, ROW: tl.constexpr, SLOT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr, TILE: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOWED: tl.constexpr, CHUNKED: tl.constexpr, ONE_BLOCK: tl.constexpr, SPLIT: tl.constexpr, KIND: tl.constexpr,
    CAPPED: tl.constexpr, SINKS: tl.constexpr, SLOPED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One block of query tokens, one key head, all of the block's positions or a piece of them.

    ROW: elements from a key head to the next, SLOT: from a position to the next; scales: the cache as float32, where
    rows have scales. log2_scale: what scores are multiplied by, log2(e) included; with a cap, half of what is wanted
    divided by it. cap: times log2(e). HEAD, TAIL: numbers of a key, all but the last TAIL of which are LATENT's value.
    """
    kv_head, piece = tl.program_id(0) % KV_HEADS, tl.program_id(0) // KV_HEADS
    if SPLIT:
        planned = tl.load(plan + piece)
        if planned < 0:
            return
        index, split = planned // ROOM, planned % ROOM
    else:
        # The last blocks of a prompt see most, so they start first.
        index, split = tl.num_programs(0) // KV_HEADS - 1 - piece, 0
    sequence = index if ONE_BLOCK else sequence_at(starts, index, num_sequences, BLOCK_Q)
    start = tl.load(starts + sequence)
    num_queries = tl.load(starts + sequence + 1) - start
    skipped = 0 if ONE_BLOCK else (index - start // BLOCK_Q - sequence) * BLOCK_Q
    if skipped >= num_queries:
        return
    rows = tl.arange(0, BLOCK_M)
    token = skipped + rows // GROUP
    valid = (rows // GROUP < BLOCK_Q) & (token < num_queries)
    head = kv_head * GROUP + rows % GROUP
    dims = tl.arange(0, PADDED)
    store = valid[:, None] & (dims < HEAD)[None, :]
    place = (start + token).to(tl.int64) * token_stride + head * query_head_stride
    q, tails = _queries(query + place, valid, HEAD, PADDED, TAIL, PADDED_TAIL, KIND)

    origin = tl.load(lens + sequence) - num_queries
    stop = origin + tl.minimum(num_queries, skipped + BLOCK_Q)
    begin = _first_seen(origin + skipped, window, chunk, WINDOWED, CHUNKED)
    first = _first_seen(origin + token, window, chunk, WINDOWED, CHUNKED)
    first_tile = begin // TILE
    last_tile = (stop + TILE - 1) // TILE
    num_splits = 1
    if SPLIT:
        num_splits = tl.load(plan + num_pieces + sequence)
        tiles = (last_tile - first_tile + num_splits - 1) // num_splits
        first_tile += split * tiles
        last_tile = tl.minimum(first_tile + tiles, last_tile)
    sums = tl.full((BLOCK_M,), 0, tl.float32)
    # Low, but finite: where a row sees nothing, differences of peaks stay numbers.
    peaks = tl.full((BLOCK_M,), -1e30, tl.float32)
    if SINKS:
        peaks = tl.where(split == 0, tl.load(sinks + head, mask=valid, other=0.0) * 1.4426950408889634, peaks)
        sums += tl.where(split == 0, 1.0, 0.0)
    slope = _slope(slopes, head, valid, SLOPED)
    total = tl.full((BLOCK_M, PADDED), 0, tl.float32)
    keys = cache + kv_head * ROW
    key_scales = scales + kv_head * (ROW // 4)
    table = tables + sequence.to(tl.int64) * table_stride
    inner, gap = last_tile, 0
    if not ONE_BLOCK:
        # Between the window's left edge and the diagonal, where there is nothing to mask.
        left = tl.maximum(first_tile, (_first_seen(stop - 1, window, chunk, WINDOWED, CHUNKED) + TILE - 1) // TILE)
        inner = tl.minimum(left, last_tile)
        full = tl.maximum(tl.minimum((origin + skipped + 1) // TILE, last_tile), inner)
        gap = full - inner
        total, sums, peaks = _advance(
            total, sums, peaks, q, tails, slope, keys, key_scales, table, origin + token, first, begin, inner, full,
            inner, 0, stop, log2_scale, cap, values, block_stride, HEAD, PADDED, TAIL, PADDED_TAIL, LATENT,
            TILE, BLOCK_SIZE, SLOT, False, False, KIND, CAPPED, SLOPED, PRECISION,
        )  # fmt: skip
    total, sums, peaks = _advance(
        total, sums, peaks, q, tails, slope, keys, key_scales, table, origin + token, first, begin, first_tile,
        last_tile - gap, inner, gap, stop, log2_scale, cap, values, block_stride,
        HEAD, PADDED, TAIL, PADDED_TAIL, LATENT, TILE, BLOCK_SIZE, SLOT, True, WINDOWED or CHUNKED, KIND, CAPPED,
        SLOPED, PRECISION,
    )  # fmt: skip
    result = total / tl.where(sums > 0, sums, 1.0)[:, None]
    if num_splits == 1:
        target = (start + token).to(tl.int64) * (KV_HEADS * GROUP) + head
        tl.store(out + target[:, None] * HEAD + dims[None, :], result.to(out.dtype.element_ty), mask=store)
    else:
        target = tl.program_id(0).to(tl.int64) * BLOCK_M + rows
        tl.store(parts + target[:, None] * HEAD + dims[None, :], result, mask=store)
        tl.store(
            logs + target, tl.where(sums > 0, peaks + tl.log2(tl.where(sums > 0, sums, 1.0)), float("-inf")), mask=valid
        )


@triton.jit(do_not_specialize=["num_sequences", "num_pieces"], do_not_specialize_on_alignment=["starts", "plan"])
def merge(
    parts, logs, starts, plan, out, num_sequences, num_pieces,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD: tl.constexpr, PADDED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_Q: tl.constexpr, ONE_TOKEN: tl.constexpr,
):  # fmt: skip
    """One head of one token: the parts of its splits, weighted by the sums that they stand for.

    ONE_TOKEN: each sequence has one, so no search for its sequence is needed.
    """
    token, head = tl.program_id(0), tl.program_id(1)
    sequence = token if ONE_TOKEN else sequence_at(starts, token, num_sequences, 0)
    start = tl.load(starts + sequence)
    num_splits = tl.load(plan + num_pieces + sequence)
    if num_splits == 1 or token >= tl.load(starts + sequence + 1):
        return  # written by `attend` itself, or padding
    piece = tl.load(plan + num_pieces + num_sequences + sequence) + (token - start) // BLOCK_Q * num_splits
    row = (token - start) % BLOCK_Q * GROUP + head % GROUP
    split = tl.arange(0, ROOM)
    dims = tl.arange(0, PADDED)
    place = ((piece + split) * KV_HEADS + head // GROUP).to(tl.int64) * BLOCK_M + row
    log = tl.load(logs + place, mask=split < num_splits, other=float("-inf"))
    weights = tl.exp2(log - tl.max(log, 0))
    mask = (split < num_splits)[:, None] & (dims < HEAD)[None, :]
    part = tl.load(parts + place[:, None] * HEAD + dims[None, :], mask=mask, other=0.0)
    result = tl.sum(part * weights[:, None], 0) / tl.sum(weights, 0)
    target = (token.to(tl.int64) * (KV_HEADS * GROUP) + head) * HEAD
    tl.store(out + target + dims, result.to(out.dtype.element_ty), mask=dims < HEAD)
