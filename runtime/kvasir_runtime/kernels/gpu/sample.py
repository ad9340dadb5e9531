"""Drawing tokens without sorting: chunks find their best in parallel, and thresholds are searched by counting.

Rows without filters take two launches that read the logits once. For filtered rows a third one between them keeps of
each chunk what can still be chosen: with top_k nothing below the k-th best chunk, with top_p nothing whose like cannot
add up to what is cut off. Among these few one program finds the smallest logit with fewer than top_k above it, then the
smallest with less than top_p of the mass above it, each exactly, by narrowing the range of bit patterns to a fifth per
pass, and last the id from which on equals are dropped. So the kept set is the reference's but for rounding in sums.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.options import options
from kvasir_runtime.kernels.sample import Draws

# Ids of a tile of a pass, which takes as many of each chunk and compares each with four pivots.
_TILE = 2048

# The mixers of kernels.noise, as signed constants.
_GOLDEN = tl.constexpr(0x9E3779B9 - (1 << 32))
_FIRST32 = tl.constexpr(0x7FEB352D)
_SECOND32 = tl.constexpr(0x846CA68B - (1 << 32))
_FIRST64 = tl.constexpr(0xBF58476D1CE4E5B9 - (1 << 64))
_SECOND64 = tl.constexpr(0x94D049BB133111EB - (1 << 64))


def launch(logits: Tensor, draws: Draws) -> Tensor:
    """kernels.sample."""
    num_rows, vocab = logits.shape
    # Chunks of a filtered row are compared with one another: more than 128 do not fit into registers.
    chunk = 1024 if vocab <= 128 * 1024 else 2048
    chunks = -(-vocab // chunk)
    padded = max(2, triton.next_power_of_2(chunks))
    device = logits.device
    best = torch.empty((2, num_rows, chunks), dtype=torch.float32, device=device)
    best_ids = torch.empty((2, num_rows, chunks), dtype=torch.int32, device=device)
    room = (num_rows, chunks, chunk) if draws.any_filter else (1, 1, 1)
    few = torch.empty(room, dtype=torch.float32, device=device), torch.empty(room, dtype=torch.int32, device=device)
    tallies = torch.empty((2, *room[:2]), dtype=torch.float32, device=device).unbind(0)  # numbers of ids, and masses
    ids = torch.empty((num_rows,), dtype=torch.int64, device=device)
    how = (draws.temperature, draws.seed, draws.position)
    filters = (draws.temperature, draws.top_k, draws.top_p, draws.min_p)
    _scan[(num_rows, chunks)](
        logits, *how, best, best_ids, vocab, logits.stride(0), best.stride(0),
        GREEDY=draws.all_greedy, CHUNK=chunk, **options(chunk),
    )  # fmt: skip
    if draws.any_filter and not draws.all_greedy:
        _gather[(num_rows, chunks)](
            logits, *filters, best, *few, *tallies, vocab, chunks, logits.stride(0),
            CHUNKS=padded, CHUNK=chunk, **options(8192),
        )  # fmt: skip
    _settle[(num_rows,)](
        *how, *filters[1:], best, best_ids, *few, *tallies, ids, vocab, chunks, best.stride(0),
        GREEDY=draws.all_greedy, FILTERED=draws.any_filter, CHUNKS=padded, CHUNK=chunk, WIDTH=max(4, _TILE // padded),
        **options(2 * _TILE if draws.any_filter else 1),
    )  # fmt: skip
    return ids


@triton.jit
def _key(seeds, positions, row):
    """The upper half of mix64(seed ^ mix64(position)): int32."""
    x = tl.load(positions + row)
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST64
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND64
    x = tl.load(seeds + row) ^ x ^ ((x >> 31) & 0x1FFFFFFFF)
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST64
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND64
    return ((x ^ ((x >> 31) & 0x1FFFFFFFF)) >> 32).to(tl.int32)


@triton.jit
def _gumbel(key, ids):
    """kernels.noise.gumbel."""
    x = key + ids * _GOLDEN
    x = (x ^ ((x >> 16) & 0xFFFF)) * _FIRST32
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _SECOND32
    x = x ^ ((x >> 16) & 0xFFFF)
    uniform = (((x >> 9) & 0x7FFFFF).to(tl.float32) + 0.5) * 1.1920928955078125e-07
    return -tl.log(-tl.log(uniform))


@triton.jit
def _divisor(temperatures, row):
    temperature = tl.load(temperatures + row)
    return temperature, tl.maximum(tl.where(temperature > 0, temperature, 1.0), 1e-5)


@triton.jit
def _first_best(values, ids):
    """The largest value and the lowest id that has it."""
    best = tl.max(values, 0)
    return best, tl.min(tl.where(values == best, ids, 0x7FFFFFFF), 0)


@triton.jit(do_not_specialize=["vocab"])
def _scan(
    logits, temperatures, seeds, positions, best, best_ids, vocab, row_stride, half,
    GREEDY: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The best of a chunk of a row: of the logits, and of what a draw without filters compares."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
    x = tl.where(x != x, float("inf"), x)  # noqa: PLR0124 - a NaN makes the row invalid, as infinity does
    place = row * tl.num_programs(1) + chunk
    value, token = _first_best(x, ids)
    tl.store(best + place, value)
    tl.store(best_ids + place, token)
    if not GREEDY:
        temperature, divisor = _divisor(temperatures, row)
        if temperature > 0:
            noisy = tl.div_rn(x, divisor) + _gumbel(_key(seeds, positions, row), ids)
            value, token = _first_best(noisy, ids)
            tl.store(best + half + place, value)
            tl.store(best_ids + half + place, token)


@triton.jit
def _ordered(x):
    """An int32 that orders as the float32 does; both zeros are one."""
    bits = tl.where(x == 0.0, 0.0, x).to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _value(order):
    """The float32 that has this order."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _is_filtered(top_k, top_p, min_p):
    return (top_k > 0) | (top_p < 1) | (min_p > 0)


@triton.jit
def _floor(top, min_p):
    """The smallest logit whose probability is min_p of the largest."""
    return tl.where(min_p > 0, top + tl.log(tl.maximum(min_p, 1e-38)), float("-inf"))


@triton.jit(do_not_specialize=["vocab", "chunks"])
def _gather(
    logits, temperatures, top_ks, top_ps, min_ps, best, few, few_ids, counts, masses, vocab, chunks, row_stride,
    CHUNKS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Of one chunk: the logits that a filter may keep, with their ids in order, how many, and the mass above min_p."""
    row, chunk = tl.program_id(0), tl.program_id(1)
    temperature, divisor = _divisor(temperatures, row)
    top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
    if (temperature <= 0) | (not _is_filtered(top_k, top_p, min_p)):
        return
    others = tl.arange(0, CHUNKS)
    tops = tl.load(best + row * chunks + others, mask=others < chunks, other=float("-inf"))
    tops = tl.div_rn(tops, divisor)
    top = tl.max(tops, 0)
    if (top == float("inf")) | (top == float("-inf")):  # an invalid row
        return
    floor = _floor(top, min_p)
    bound = floor
    if top_k > 0:
        # The k-th best chunk: it and those before it have an id each that is not below.
        better = tl.sum(tl.where(tops[None, :] > tops[:, None], 1, 0), 1)
        bound = tl.maximum(bound, tl.min(tl.where(better < top_k, tops, float("inf")), 0))
    elif top_p < 1:
        # All ids below this together have less than half of what top_p cuts off.
        bound = tl.maximum(bound, top + tl.log((1.0 - top_p) / (2.0 * vocab)))
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    x = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=ids < vocab, other=float("-inf")).to(tl.float32)
    x = tl.div_rn(x, divisor)
    kept = (x >= bound) & (x > float("-inf"))
    place = row * chunks + chunk
    target = place.to(tl.int64) * CHUNK + tl.cumsum(kept.to(tl.int32), 0) - 1
    tl.store(few + target, x, mask=kept)
    tl.store(few_ids + target, ids, mask=kept)
    tl.store(counts + place, tl.sum(kept.to(tl.float32), 0))
    tl.store(masses + place, tl.sum(tl.where(x >= floor, tl.exp(x - top), 0.0), 0))


@triton.jit
def _lanes(counts, base, CHUNK: tl.constexpr, WIDTH: tl.constexpr):
    """Offsets of the next WIDTH kept ids of every chunk, as one row, and which of them there are."""
    lane = base + tl.arange(0, WIDTH)
    offsets = tl.arange(0, counts.shape[0])[:, None] * CHUNK + lane[None, :]
    here = lane[None, :] < counts[:, None]
    num_lanes: tl.constexpr = counts.shape[0] * WIDTH
    return tl.reshape(offsets, (num_lanes,)), tl.reshape(here, (num_lanes,))


@triton.jit
def _threshold(few, counts, longest, top, low, limit, MASS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr):
    """The smallest order from `low` on with less than limit above it, and how much is above it.

    Of MASS in units of the largest probability, else of ids. limit > 0, so that the largest, top, always qualifies.
    """
    lower = low.to(tl.int64)
    upper = _ordered(top).to(tl.int64)
    above = limit * 0
    steps = tl.arange(0, 4).to(tl.int64) + 1
    while lower < upper:
        pivots = lower + (upper - lower) * steps // 5
        tally = tl.full((4,), 0, tl.float32)
        for base in range(0, longest, WIDTH):
            offsets, here = _lanes(counts, base, CHUNK, WIDTH)
            x = tl.load(few + offsets, mask=here, other=float("-inf"))
            share = tl.exp(x - top) if MASS else here.to(tl.float32)
            higher = _ordered(x)[:, None] > pivots.to(tl.int32)[None, :]
            tally += tl.sum(tl.where(higher, share[:, None], 0.0), 0)
        fits = tally < limit
        found = tl.min(tl.where(fits, pivots, upper), 0)
        # Tallies fall as pivots rise, so the largest that fits belongs to the smallest pivot.
        above = tl.where(found < upper, tl.max(tl.where(fits, tally, 0.0), 0), above)
        lower = tl.max(tl.where(fits, lower, pivots + 1), 0)
        upper = found
    return upper.to(tl.int32), above


@triton.jit
def _at_edge(few, counts, longest, top, edge, CHUNK: tl.constexpr, WIDTH: tl.constexpr):
    """The mass above an order, and the number of ids at it."""
    above = top * 0
    equal = top * 0
    for base in range(0, longest, WIDTH):
        offsets, here = _lanes(counts, base, CHUNK, WIDTH)
        x = tl.load(few + offsets, mask=here, other=float("-inf"))
        above += tl.sum(tl.where(_ordered(x) > edge, tl.exp(x - top), 0.0), 0)
        equal += tl.sum(tl.where(here & (_ordered(x) == edge), 1.0, 0.0), 0)
    return above, equal


@triton.jit
def _last_equal(few, few_ids, counts, longest, edge, num_equal, vocab, CHUNK: tl.constexpr, WIDTH: tl.constexpr):
    """The id up to which there are num_equal ids at the edge."""
    lower = edge * 0
    upper = lower + vocab
    steps = tl.arange(0, 4) + 1
    while lower < upper:
        pivots = (lower + (upper - lower).to(tl.int64) * steps // 5).to(tl.int32)
        tally = tl.full((4,), 0, tl.float32)
        for base in range(0, longest, WIDTH):
            offsets, here = _lanes(counts, base, CHUNK, WIDTH)
            x = tl.load(few + offsets, mask=here, other=float("-inf"))
            ids = tl.load(few_ids + offsets, mask=here, other=0)
            equal = here & (_ordered(x) == edge)
            tally += tl.sum(tl.where(equal[:, None] & (ids[:, None] <= pivots[None, :]), 1.0, 0.0), 0)
        enough = tally >= num_equal
        found = tl.min(tl.where(enough, pivots, upper), 0)
        lower = tl.max(tl.where(enough, lower, pivots + 1), 0)
        upper = found
    return upper


@triton.jit
def _filtered(
    few, few_ids, counts, longest, mass, key, top, top_k, top_p, min_p, vocab, CHUNK: tl.constexpr, WIDTH: tl.constexpr
):
    """The drawn id of a row whose filters count. mass: of all ids that pass min_p."""
    many = 16777216.0  # more than any vocabulary, and exact in float32
    edge = _ordered(_floor(top, min_p))
    num_equal = top * 0 + many
    if top_k > 0:
        limit = top_k.to(tl.float32)
        edge, above = _threshold(few, counts, longest, top, edge, limit, False, CHUNK, WIDTH)
        num_equal = limit - above
        heavier, equal = _at_edge(few, counts, longest, top, edge, CHUNK, WIDTH)
        mass = heavier + tl.minimum(equal, num_equal) * tl.exp(_value(edge) - top)
    if top_p < 1:
        limit = tl.maximum(top_p * mass, 1e-38)
        lowest = edge
        edge, above = _threshold(few, counts, longest, top, lowest, limit, True, CHUNK, WIDTH)
        share = tl.maximum(tl.exp(_value(edge) - top), 1e-38)
        fitting = tl.minimum(tl.ceil((limit - above) / share), many)
        num_equal = tl.where(edge == lowest, tl.minimum(num_equal, fitting), fitting)
    last = edge * 0 + 0x7FFFFFFF
    _, equal = _at_edge(few, counts, longest, top, edge, CHUNK, WIDTH)
    if equal > num_equal:
        last = _last_equal(few, few_ids, counts, longest, edge, num_equal, vocab, CHUNK, WIDTH)
    best = top * 0 + float("-inf")
    winner = edge * 0 + 0x7FFFFFFF
    for base in range(0, longest, WIDTH):
        offsets, here = _lanes(counts, base, CHUNK, WIDTH)
        x = tl.load(few + offsets, mask=here, other=float("-inf"))
        ids = tl.load(few_ids + offsets, mask=here, other=0)
        kept = here & ((_ordered(x) > edge) | ((_ordered(x) == edge) & (ids <= last)))
        noisy = tl.where(kept, x + _gumbel(key, ids), float("-inf"))
        value, token = _first_best(noisy, tl.where(kept, ids, 0x7FFFFFFF))
        winner = tl.where((value > best) | ((value == best) & (token < winner)), token, winner)
        best = tl.maximum(best, value)
    return winner


@triton.jit(do_not_specialize=["vocab", "chunks"])
def _settle(
    temperatures, seeds, positions, top_ks, top_ps, min_ps, best, best_ids, few, few_ids, counts, masses, ids,
    vocab, chunks, half,
    GREEDY: tl.constexpr, FILTERED: tl.constexpr, CHUNKS: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The id of one row, from the best of its chunks, or by its filters; -1 (argmax.INVALID) of an invalid one."""
    row = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    place = row * chunks + chunk
    here = chunk < chunks
    tops = tl.load(best + place, mask=here, other=float("-inf"))
    top, winner = _first_best(tops, tl.load(best_ids + place, mask=here, other=0x7FFFFFFF))
    valid = (top > float("-inf")) & (top < float("inf"))
    if not GREEDY:
        temperature, divisor = _divisor(temperatures, row)
        plain = (temperature > 0) & valid
        if FILTERED:
            top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
            if plain & _is_filtered(top_k, top_p, min_p):
                plain = temperature < 0
                kept = tl.load(counts + place, mask=here, other=0.0)
                mass = tl.sum(tl.load(masses + place, mask=here, other=0.0), 0)
                mine = row.to(tl.int64) * chunks * CHUNK
                longest = tl.max(kept, 0).to(tl.int32)
                winner = _filtered(
                    few + mine, few_ids + mine, kept, longest, mass, _key(seeds, positions, row),
                    tl.div_rn(top, divisor), top_k, top_p, min_p, vocab, CHUNK, WIDTH,
                )  # fmt: skip
        if plain:
            noisy = tl.load(best + half + place, mask=here, other=float("-inf"))
            _, winner = _first_best(noisy, tl.load(best_ids + half + place, mask=here, other=0x7FFFFFFF))
    tl.store(ids + row, tl.where(valid, winner, -1).to(tl.int64))
