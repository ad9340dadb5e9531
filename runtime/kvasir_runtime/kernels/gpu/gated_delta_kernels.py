"""The kernels of the gated delta rule: convolution, single tokens, what chunks need before their states, and chunks.

Launched by `gated_delta`, which explains the order. Tensors' shapes are those of `kernels.gated_delta`; further
    mixed:            (tokens, channels): x behind convolution and activation; queries and keys normed, queries scaled
    inverses, scores: (tokens, value_heads, CHUNK): of each token a row of the matrices of its chunk, as `prepare` says
PADDED: of KEY_DIM, or of all head sizes; COLUMNS: of a state, that a program has; WIDTH: of the convolution.
DELTA: which rule; BIASED, SKIPS: whether the convolution has a bias, and there are skips.
G[i] is the sum of a chunk's log decays up to its token i.
"""

import triton
import triton.language as tl

from kvasir_runtime.kernels.gpu.attention_kernels import sequence_at

# What changes from step to step must not be compiled for, nor where tensors begin that are slices of a copy.
_VARYING = ["num_sequences", "block_size", "table_stride"]
_SLICES = ["tables", "starts", "lens"]


@triton.jit
def _state_blocks(tables, lens, sequence, count, block_size, table_stride):
    """Where a sequence's tokens begin, the block of the state before them, there is one unless that is 0, and the block
    of the state behind them.
    """
    end = tl.load(lens + sequence)
    begin = end - count
    table = tables + sequence.to(tl.int64) * table_stride
    read = tl.load(table + (tl.maximum(begin, 1) - 1) // block_size).to(tl.int64)
    return begin, read, tl.load(table + (end - 1) // block_size).to(tl.int64)


@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_SLICES)
def convolve(
    x, conv, bias, mixed, states, tables, starts, lens, block_size, state_stride, table_stride, num_sequences, x_stride,
    scale,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    DELTA: tl.constexpr, BIASED: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, TOKENS: tl.constexpr, HELD: tl.constexpr, ONE_BLOCK: tl.constexpr,
):  # fmt: skip
    """Some tokens of a sequence, one head of its queries, keys or values; the first of them advance what is kept.

    Only they read what was kept, as TOKENS is at least WIDTH - 1 where there are others. HELD: at least WIDTH.
    """
    index, head = tl.program_id(0), tl.program_id(1)
    sequence = index if ONE_BLOCK else sequence_at(starts, index, num_sequences, TOKENS)
    start = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - start
    skipped = 0 if ONE_BLOCK else (index - start // TOKENS - sequence) * TOKENS
    if skipped >= count:
        return
    begin, read, written = _state_blocks(tables, lens, sequence, count, block_size, table_stride)
    channels: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    of_values, values = head >= 2 * KEY_HEADS, head - 2 * KEY_HEADS
    first = tl.where(of_values, 2 * KEY_HEADS * KEY_DIM + values * VALUE_DIM, head * KEY_DIM)
    dims = tl.arange(0, PADDED)
    inside = (dims < tl.where(of_values, VALUE_DIM, KEY_DIM))[None, :]
    channel = (first + dims)[None, :]
    source = x + start.to(tl.int64) * x_stride + channel
    kept = states + read * state_stride + (WIDTH - 1) * channels + channel  # behind the last input that is kept

    token = skipped + tl.arange(0, TOKENS)
    valid = (token < count)[:, None]
    total = tl.zeros((TOKENS, PADDED), tl.float32)
    if BIASED:
        total += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)
    for place in tl.static_range(WIDTH):
        at = token[:, None] - (WIDTH - 1) + place
        given = tl.load(source + at.to(tl.int64) * x_stride, mask=inside & valid & (at >= 0), other=0.0).to(tl.float32)
        before = tl.load(kept + at * channels, mask=inside & valid & (at < 0) & (at >= -begin), other=0.0)
        total += (given + before) * tl.load(conv + channel * WIDTH + place, mask=inside, other=0.0).to(tl.float32)
    total = total / (1.0 + tl.exp(-total))
    if DELTA:
        norm = tl.rsqrt(tl.sum(total * total, 1) + 1e-6) * tl.where(head < KEY_HEADS, scale, 1.0)
        total *= tl.where(of_values, 1.0, norm)[:, None]
    target = mixed + (start + token).to(tl.int64)[:, None] * channels + channel
    tl.store(target, total.to(mixed.dtype.element_ty), mask=inside & valid)
    if skipped == 0:
        held = tl.arange(0, HELD)[:, None]
        last = count - (WIDTH - 1) + held
        mine = inside & (held < WIDTH - 1)
        new = tl.load(source + last.to(tl.int64) * x_stride, mask=mine & (last >= 0), other=0.0).to(tl.float32)
        old = tl.load(kept + last * channels, mask=mine & (last < 0) & (last >= -begin), other=0.0)
        tl.debug_barrier()  # the block may be the one that was read
        tl.store(states + written * state_stride + held * channels + channel, new + old, mask=mine)


@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_SLICES)
def step(
    mixed, log_decay, beta, skip, out, states, tables, starts, lens, block_size, state_stride, table_stride,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    DELTA: tl.constexpr, SKIPS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr, MOST_STEPS: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's state, token by token, of a sequence with at most MOST_STEPS."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    start = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - start
    if (count < 1) | (count > MOST_STEPS):
        return
    begin, read, written = _state_blocks(tables, lens, sequence, count, block_size, table_stride)
    channels: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    row, column = tl.arange(0, PADDED), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < KEY_DIM)[:, None] & (column < VALUE_DIM)[None, :]
    place = (WIDTH - 1) * channels + (head * KEY_DIM + row)[:, None] * VALUE_DIM + column[None, :]
    known = mask & (row < tl.where(begin > 0, KEY_DIM, 0))[:, None]
    state = tl.load(states + read * state_stride + place, mask=known, other=0.0)
    key_head = head // (VALUE_HEADS // KEY_HEADS) * KEY_DIM + row
    value_head = 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + column
    for index in range(count):
        token = start.to(tl.int64) + index
        source = mixed + token * channels
        query = tl.load(source + key_head, mask=row < KEY_DIM, other=0.0).to(tl.float32)[:, None]
        key = tl.load(source + KEY_HEADS * KEY_DIM + key_head, mask=row < KEY_DIM, other=0.0).to(tl.float32)[:, None]
        value = tl.load(source + value_head, mask=column < VALUE_DIM, other=0.0).to(tl.float32)
        scalar = token * VALUE_HEADS + head
        state *= tl.exp(tl.load(log_decay + scalar))
        change = (value - tl.sum(state * key, 0) if DELTA else value) * tl.load(beta + scalar)
        state += key * change[None, :]
        result = tl.sum(state * query, 0)
        if SKIPS:
            result += tl.load(skip + head) * value
        tl.store(out + scalar * VALUE_DIM + column, result.to(out.dtype.element_ty), mask=column < VALUE_DIM)
    tl.debug_barrier()  # the block may be the one that was read
    tl.store(states + written * state_stride + place, state, mask=mask)


@triton.jit
def _product(exact, wide):
    """exact @ wide; the latter, in float32, as the sum of two numbers of the former's type."""
    if exact.dtype == tl.float32:
        return tl.dot(exact, wide, input_precision="ieee")
    high = wide.to(exact.dtype)
    return tl.dot(exact, high, tl.dot(exact, (wide - high.to(tl.float32)).to(exact.dtype)))


@triton.jit
def _of_chunk(
    mixed, log_decay, beta, start, token, count, head,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, PADDED: tl.constexpr,
    CHANNELS: tl.constexpr,
):  # fmt: skip
    """Pointers to the keys of a chunk and which of them there are, sums of its log decays, and betas. Tokens behind the
    last neither decay nor change anything.
    """
    row = tl.arange(0, PADDED)
    key_head = KEY_HEADS * KEY_DIM + head // (VALUE_HEADS // KEY_HEADS) * KEY_DIM + row
    place = (start + token).to(tl.int64)
    valid = token < count
    scalar = place * VALUE_HEADS + head
    total = tl.cumsum(tl.load(log_decay + scalar, mask=valid, other=0.0), 0)
    keys = mixed + place[:, None] * CHANNELS + key_head[None, :]
    return keys, valid[:, None] & (row < KEY_DIM)[None, :], total, tl.load(beta + scalar, mask=valid, other=0.0)


@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_SLICES)
def prepare(
    mixed, log_decay, beta, inverses, scores, starts, num_sequences,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    DELTA: tl.constexpr,
    PADDED: tl.constexpr, MOST_STEPS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """One chunk and head: exp(G[i] - G[j]) * (q[i] @ k[j]) for j <= i, and the inverse of 1 + L, L[i, j] = beta[i] *
    exp(G[i] - G[j]) * (k[i] @ k[j]) for j < i, by substitution column by column.
    """
    index, head = tl.program_id(0), tl.program_id(1)
    sequence = sequence_at(starts, index, num_sequences, CHUNK)
    start = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - start
    skipped = (index - start // CHUNK - sequence) * CHUNK
    if (count <= MOST_STEPS) | (skipped >= count):
        return
    row = tl.arange(0, CHUNK)
    token = skipped + row
    channels: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    keys, mask, total, rate = _of_chunk(
        mixed, log_decay, beta, start, token, count, head, KEY_HEADS, VALUE_HEADS, KEY_DIM, PADDED, channels
    )
    key = tl.load(keys, mask=mask, other=0.0)
    query = tl.load(keys - KEY_HEADS * KEY_DIM, mask=mask, other=0.0)
    is_seen, is_later = row[:, None] >= row[None, :], row[:, None] > row[None, :]
    between = tl.exp(tl.where(is_seen, total[:, None] - total[None, :], 0.0))
    target = ((start + token).to(tl.int64) * VALUE_HEADS + head) * CHUNK
    target, valid = target[:, None] + row[None, :], (token < count)[:, None]
    score = tl.where(is_seen, tl.dot(query, tl.trans(key), input_precision="ieee") * between, 0.0)
    tl.store(scores + target, score.to(scores.dtype.element_ty), mask=valid)
    if DELTA:
        system = tl.dot(key, tl.trans(key), input_precision="ieee") * between * rate[:, None]
        system = tl.where(is_later, system, 0.0)
        inverse = tl.where(row[:, None] == row[None, :], 1.0, 0.0)
        for place in range(CHUNK - 1):
            factors = tl.sum(tl.where(row[None, :] == place, system, 0.0), 1)
            known = tl.sum(tl.where(row[:, None] == place, inverse, 0.0), 0)
            inverse -= factors[:, None] * known[None, :]
        tl.store(inverses + target, inverse, mask=valid)


@triton.jit(do_not_specialize=_VARYING, do_not_specialize_on_alignment=_SLICES)
def advance(
    mixed, log_decay, beta, skip, inverses, scores, out, states, tables, starts, lens, block_size, state_stride,
    table_stride,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
    DELTA: tl.constexpr, SKIPS: tl.constexpr,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr, MOST_STEPS: tl.constexpr,
    CHUNK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Some columns of one head's state, chunk by chunk, of a sequence with more than MOST_STEPS tokens."""
    head, sequence = tl.program_id(1), tl.program_id(2)
    start = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - start
    if count <= MOST_STEPS:
        return
    begin, read, written = _state_blocks(tables, lens, sequence, count, block_size, table_stride)
    channels: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    dims, column = tl.arange(0, PADDED), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    held = (dims < KEY_DIM)[:, None] & (column < VALUE_DIM)[None, :]
    place = (WIDTH - 1) * channels + (head * KEY_DIM + dims)[:, None] * VALUE_DIM + column[None, :]
    known = held & (dims < tl.where(begin > 0, KEY_DIM, 0))[:, None]
    state = tl.load(states + read * state_stride + place, mask=known, other=0.0)
    value_head = 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + column
    row = tl.arange(0, CHUNK)
    for skipped in range(0, count, CHUNK):
        token = skipped + row
        keys, mask, total, rate = _of_chunk(
            mixed, log_decay, beta, start, token, count, head, KEY_HEADS, VALUE_HEADS, KEY_DIM, PADDED, channels
        )
        key = tl.load(keys, mask=mask, other=0.0)
        query = tl.load(keys - KEY_HEADS * KEY_DIM, mask=mask, other=0.0)
        there = (start + token).to(tl.int64)[:, None]
        columns = (token < count)[:, None] & (column < VALUE_DIM)[None, :]
        value = tl.load(mixed + there * channels + value_head[None, :], mask=columns, other=0.0).to(tl.float32)
        of_chunk = (there * VALUE_HEADS + head) * CHUNK + row[None, :]
        score = tl.load(scores + of_chunk, mask=(token < count)[:, None], other=0.0)
        grown = tl.exp(total)[:, None]
        change = rate[:, None] * value
        if DELTA:
            inverse = tl.load(inverses + of_chunk, mask=(token < count)[:, None], other=0.0)
            wanted = rate[:, None] * (value - grown * _product(key, state))
            change = tl.dot(inverse, wanted, input_precision=PRECISION)
        result = grown * tl.dot(query, state.to(query.dtype), input_precision="ieee")
        result = tl.dot(score, change.to(key.dtype), result, input_precision="ieee")
        if SKIPS:
            result += tl.load(skip + head) * value
        target = (there * VALUE_HEADS + head) * VALUE_DIM + column[None, :]
        tl.store(out + target, result.to(out.dtype.element_ty), mask=columns)
        last = tl.sum(tl.where(row == CHUNK - 1, total, 0.0), 0)
        state = state * tl.exp(last) + _product(tl.trans(key), change * tl.exp(last - total)[:, None])
    tl.debug_barrier()  # the block may be the one that was read
    tl.store(states + written * state_stride + place, state, mask=held)
