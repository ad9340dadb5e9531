"""Gumbel noise as a pure function of (seed, position, token id): no generator, no state, no batch.

    key   = mix64(seed ^ mix64(position)), its upper half            64-bit arithmetic, wrapping
    bits  = mix32(key + id * 0x9E3779B9)                             32-bit arithmetic, wrapping
    u     = ((bits >> 9) + 0.5) / 2**23                              exact in float32, never 0 or 1
    noise = -log(-log(u))
    mix64(x): x ^= x >>> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >>> 27; x *= 0x94D049BB133111EB; x ^= x >>> 31
    mix32(x): x ^= x >>> 16; x *= 0x7FEB352D; x ^= x >>> 15; x *= 0x846CA68B; x ^= x >>> 16

Adding it to log-probabilities and taking the largest draws from them (Gumbel-max). The mixers are
splitmix64's (Steele, Lea and Flood 2014) and Wellons' lowbias32; the work per id is in 32 bits because CPUs do twice as
much of it at a time. Anything that draws tokens uses this file, so that a row gives the same token alone, in a batch,
after a preemption, and on another pod.
"""

from torch import Tensor

# Constants as signed integers, as torch has no unsigned arithmetic.
_GOLDEN, _FIRST32, _SECOND32 = (c - (1 << 32) if c >> 31 else c for c in (0x9E3779B9, 0x7FEB352D, 0x846CA68B))
_FIRST64, _SECOND64 = (c - (1 << 64) for c in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
# Extremes of the noise: u is at least 2**-24 and at most 1 - 2**-24.
LOWEST, HIGHEST = -2.812, 16.636


def keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """The key of a row's noise: int32, from int64 seeds and positions."""
    return (mix64(seeds ^ mix64(positions)) >> 32).int()


def gumbel(row_keys: Tensor, ids: Tensor) -> Tensor:
    """Noise for token ids: float32, of the shape that row_keys and ids broadcast to."""
    bits = mix32(row_keys + ids.int() * _GOLDEN)
    uniform = ((bits >> 9) & 0x7FFFFF).float().add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def mix64(x: Tensor) -> Tensor:
    """Every bit of the int64 result depends on every bit of x; a bijection."""
    x = (x ^ _shift_right(x, 30, 64)) * _FIRST64
    x = (x ^ _shift_right(x, 27, 64)) * _SECOND64
    return x ^ _shift_right(x, 31, 64)


def mix32(x: Tensor) -> Tensor:
    """Every bit of the int32 result depends on every bit of x; a bijection."""
    x = (x ^ _shift_right(x, 16, 32)) * _FIRST32
    x = (x ^ _shift_right(x, 15, 32)) * _SECOND32
    return x ^ _shift_right(x, 16, 32)


def _shift_right(x: Tensor, bits: int, width: int) -> Tensor:
    """Logical shift: torch's own keeps the sign."""
    return (x >> bits) & ((1 << (width - bits)) - 1)
