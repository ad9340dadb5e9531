"""Drawing tokens without sorting: chunks find their best in parallel, and thresholds are searched by counting.

Rows without filters take two launches that read the logits once. A filtered row is settled by one program: the smallest
logit with fewer than top_k above it, then the smallest with less than top_p of the mass above it, each found exactly by
narrowing the range of bit patterns to a fifth per pass; a last pass draws among what is left, counting equals at the
edge by id. So the kept set is the reference's but for rounding in sums.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.options import options
from kvasir_runtime.kernels.sample import Draws

# Elements of a program's tile: of a chunk, and of one pass over a filtered row, which compares each with four pivots.
_CHUNK, _BLOCK = 2048, 2048

# The mixers of kernels.noise, as signed constants.
_GOLDEN = tl.constexpr(0x9E3779B9 - (1 << 32))
_FIRST32 = tl.constexpr(0x7FEB352D)
_SECOND32 = tl.constexpr(0x846CA68B - (1 << 32))
_FIRST64 = tl.constexpr(0xBF58476D1CE4E5B9 - (1 << 64))
_SECOND64 = tl.constexpr(0x94D049BB133111EB - (1 << 64))


def launch(logits: Tensor, draws: Draws) -> Tensor:
    """kernels.sample."""
    num_rows, vocab = logits.shape
    chunks = -(-vocab // _CHUNK)
    best = torch.empty((2, num_rows, chunks), dtype=torch.float32, device=logits.device)
    best_ids = torch.empty((2, num_rows, chunks), dtype=torch.int32, device=logits.device)
    ids = torch.empty((num_rows,), dtype=torch.int64, device=logits.device)
    how = (draws.temperature, draws.seed, draws.position)
    _scan[(num_rows, chunks)](
        logits, *how, best, best_ids, vocab, logits.stride(0), best.stride(0),
        GREEDY=draws.all_greedy, CHUNK=_CHUNK, **options(_CHUNK),
    )  # fmt: skip
    _settle[(num_rows,)](
        logits, *how, draws.top_k, draws.top_p, draws.min_p, best, best_ids, ids, vocab, chunks, logits.stride(0),
        best.stride(0),
        GREEDY=draws.all_greedy, FILTERED=draws.any_filter, CHUNKS=triton.next_power_of_2(chunks), BLOCK=_BLOCK,
        **options(4 * _BLOCK if draws.any_filter else 1),
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
    x = tl.load(logits + row.to(tl.int64) * row_stride + ids, mask=ids < vocab, other=float("-inf"))
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
def _block(row, base, vocab, divisor, BLOCK: tl.constexpr):
    ids = base + tl.arange(0, BLOCK)
    return ids, tl.div_rn(tl.load(row + ids, mask=ids < vocab, other=float("-inf")), divisor)


@triton.jit
def _threshold(row, vocab, divisor, top, low, limit, MASS: tl.constexpr, BLOCK: tl.constexpr):
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
        for base in range(0, vocab, BLOCK):
            _, x = _block(row, base, vocab, divisor, BLOCK)
            share = tl.exp(x - top) if MASS else tl.full((BLOCK,), 1, tl.float32)
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
def _mass(row, vocab, divisor, top, edge, num_equal, BLOCK: tl.constexpr):
    """Sum over the ids above the edge and at most num_equal of those at it, in units of the largest probability."""
    above = top * 0
    equal = top * 0
    for base in range(0, vocab, BLOCK):
        _, x = _block(row, base, vocab, divisor, BLOCK)
        order = _ordered(x)
        above += tl.sum(tl.where(order > edge, tl.exp(x - top), 0.0), 0)
        equal += tl.sum(tl.where(order == edge, 1.0, 0.0), 0)
    return above + tl.minimum(equal, num_equal) * tl.exp(_value(edge) - top)


@triton.jit
def _filtered(row, vocab, divisor, top, key, top_k, top_p, min_p, BLOCK: tl.constexpr):
    """The drawn id of a row whose filters count."""
    many = 16777216.0  # more than any vocabulary, and exact in float32
    floor = tl.where(min_p > 0, top + tl.log(tl.maximum(min_p, 1e-38)), float("-inf"))
    edge = _ordered(floor)
    num_equal = top * 0 + many
    if top_k > 0:
        limit = top_k.to(tl.float32)
        edge, above = _threshold(row, vocab, divisor, top, edge, limit, False, BLOCK)
        num_equal = limit - above
    if top_p < 1:
        limit = top_p * _mass(row, vocab, divisor, top, edge, num_equal, BLOCK)
        limit = tl.maximum(limit, 1e-38)
        lowest = edge
        edge, above = _threshold(row, vocab, divisor, top, lowest, limit, True, BLOCK)
        share = tl.maximum(tl.exp(_value(edge) - top), 1e-38)
        fitting = tl.minimum(tl.ceil((limit - above) / share), many)
        num_equal = tl.where(edge == lowest, tl.minimum(num_equal, fitting), fitting)
    best = top * 0 + float("-inf")
    winner = edge * 0
    passed = top * 0
    for base in range(0, vocab, BLOCK):
        ids, x = _block(row, base, vocab, divisor, BLOCK)
        order = _ordered(x)
        equal = tl.where(order == edge, 1.0, 0.0)
        kept = (order > edge) | ((order == edge) & (passed + tl.cumsum(equal, 0) <= num_equal))
        value, token = _first_best(tl.where(kept, x + _gumbel(key, ids), float("-inf")), ids)
        winner = tl.where(value > best, token, winner)
        best = tl.maximum(best, value)
        passed += tl.sum(equal, 0)
    return winner


@triton.jit(do_not_specialize=["vocab", "chunks"])
def _settle(
    logits, temperatures, seeds, positions, top_ks, top_ps, min_ps,
    best, best_ids, ids, vocab, chunks, row_stride, half,
    GREEDY: tl.constexpr, FILTERED: tl.constexpr, CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The id of one row, from the best of its chunks, or by its filters."""
    row = tl.program_id(0)
    chunk = tl.arange(0, CHUNKS)
    place = row * chunks + chunk
    here = chunk < chunks
    tops = tl.load(best + place, mask=here, other=float("-inf"))
    top, winner = _first_best(tops, tl.load(best_ids + place, mask=here, other=0x7FFFFFFF))
    if not GREEDY:
        temperature, divisor = _divisor(temperatures, row)
        plain = temperature > 0
        if FILTERED:
            top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
            if plain & ((top_k > 0) | (top_p < 1) | (min_p > 0)):
                plain = False
                line = logits + row.to(tl.int64) * row_stride
                key = _key(seeds, positions, row)
                winner = _filtered(line, vocab, divisor, tl.div_rn(top, divisor), key, top_k, top_p, min_p, BLOCK)
        if plain:
            noisy = tl.load(best + half + place, mask=here, other=float("-inf"))
            _, winner = _first_best(noisy, tl.load(best_ids + half + place, mask=here, other=0x7FFFFFFF))
    tl.store(ids + row, winner.to(tl.int64))
