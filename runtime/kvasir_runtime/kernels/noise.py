"""Gumbel noise as a pure function of (seed, position, token id): no generator, no state, no batch.

    key   = mix(seed ^ mix(position))
    bits  = mix(key + id * 0x9E3779B97F4A7C15)           all 64-bit, wrapping
    u     = ((bits >> 41 & 0x7FFFFF) + 0.5) / 2**23      exact in float32, never 0 or 1
    noise = -log(-log(u))
    mix(x): x ^= x >>> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >>> 27; x *= 0x94D049BB133111EB; x ^= x >>> 31

Adding it to log-probabilities and taking the largest draws from them (Gumbel-max). The mixer is splitmix64's
(Steele, Lea and Flood 2014). Anything that draws tokens uses this file, so that a row gives the same token alone,
in a batch, after a preemption, and on another pod.
"""

from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # as signed 64-bit, as torch has no unsigned arithmetic
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
# Extremes of the noise: u is at least 2**-24 and at most 1 - 2**-24.
LOWEST, HIGHEST = -2.812, 16.636


def keys(seeds: Tensor, positions: Tensor) -> Tensor:
    """What the noise of a row hangs on: int64 like seeds and positions."""
    return mix(seeds ^ mix(positions))


def gumbel(row_keys: Tensor, ids: Tensor) -> Tensor:
    """Noise for token ids: float32, of the shape that row_keys and ids broadcast to."""
    bits = mix(row_keys + ids * _GOLDEN)
    uniform = ((bits >> 41) & 0x7FFFFF).float().add_(0.5).mul_(2.0**-23)
    return uniform.log_().neg_().log_().neg_()


def mix(x: Tensor) -> Tensor:
    """Every bit of the int64 result depends on every bit of x; a bijection."""
    x = (x ^ _shift_right(x, 30)) * _FIRST
    x = (x ^ _shift_right(x, 27)) * _SECOND
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's own keeps the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)
