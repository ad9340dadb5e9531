"""Angles of the rotary embedding for every position, once at start, for each way of stretching it; growing queries.

Called by the decoder; `kernels.rope` applies the rows. The formulas are those of the checkpoints' own training code.
"""

import math

import torch
from torch import Tensor

from kvasir_runtime.layers.layer_specs import TemperatureSpec
from kvasir_runtime.layers.spec import RopeSpec

Angles = tuple[Tensor, Tensor]
"""cos and sin."""


def angles(rope: RopeSpec, head_dim: int, num_positions: int, like: Tensor) -> Angles:
    """`tables` on the device and in the type of another tensor."""
    cos, sin = tables(rope, head_dim, num_positions, like.dtype)
    return cos.to(like.device), sin.to(like.device)


def of_positions(angles: Angles, positions: Tensor) -> Angles:
    """As `kernels.rope` takes them: each (tokens, 1, head_dim). positions: (tokens,) int64."""
    cos, sin = angles
    return cos.index_select(0, positions).unsqueeze(1), sin.index_select(0, positions).unsqueeze(1)


def reached(temperature: TemperatureSpec | None, num_positions: int) -> TemperatureSpec | None:
    """The same; None where no query of a sequence of so many tokens grows."""
    is_reached = temperature is not None and num_positions - 1 + temperature.first >= temperature.step
    return temperature if is_reached else None


def query_scale(temperature: TemperatureSpec, positions: Tensor) -> Tensor:
    """What queries are multiplied with: (tokens, 1, 1) float32. positions: (tokens,) int64."""
    steps = torch.floor((positions.float() + temperature.first) / temperature.step)
    return (torch.log1p(steps) * temperature.scale + 1).view(-1, 1, 1)


def tables(rope: RopeSpec, head_dim: int, num_positions: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """cos and sin as `kernels.rope` takes them: each (num_positions, head_dim); sin is negative in its first half.

    Angles are computed in float32, since position * frequency does not fit into 16 bits. Dimensions that do not turn
    (`DecoderSpec.head_order`) have cos 1 and sin 0.
    """
    turned = rope.rotary_dim or head_dim
    angles = torch.outer(
        torch.arange(num_positions, dtype=torch.float32), frequencies(rope, turned, num_positions=num_positions)
    )
    scale, fixed = _attention_factor(rope), (head_dim - turned) // 2
    cos = torch.nn.functional.pad(angles.cos() * scale, (0, fixed), value=1.0)
    sin = torch.nn.functional.pad(angles.sin() * scale, (0, fixed))
    return torch.cat((cos, cos), dim=-1).to(dtype), torch.cat((-sin, sin), dim=-1).to(dtype)


def frequencies(rope: RopeSpec, rotary_dim: int, *, num_positions: int) -> Tensor:
    """Radians per position of each pair of dimensions: (rotary_dim / 2,) float32.

    num_positions: longest sequence. dynamic and longrope depend on it; all sequences have the angles of the longest,
    since keys in the cache belong to sequences of any length.
    """
    if rope.kind == "dynamic":
        return _plain(_dynamic_base(rope, rotary_dim, num_positions), rotary_dim)
    plain = _plain(rope.theta, rotary_dim)
    if rope.kind == "none":
        return torch.zeros_like(plain)
    if rope.kind == "linear":
        return plain / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, plain)
    if rope.kind == "yarn":
        return _yarn(rope, plain, rotary_dim)
    if rope.kind == "longrope":
        return plain / torch.tensor(rope.factors if num_positions > rope.original_max_position else rope.short_factors)
    if rope.kind == "factors":
        return plain / torch.tensor(rope.factors)
    return plain


def _plain(base: float, rotary_dim: int) -> Tensor:
    return 1.0 / base ** (torch.arange(0, rotary_dim, 2, dtype=torch.int64).float() / rotary_dim)


def _dynamic_base(rope: RopeSpec, rotary_dim: int, num_positions: int) -> float:
    """A larger base stretches long waves and leaves short ones (NTK-aware scaling)."""
    longest = max(num_positions, rope.original_max_position)
    stretch = rope.factor * longest / rope.original_max_position - (rope.factor - 1)
    return rope.theta * stretch ** (rotary_dim / (rotary_dim - 2)) if rotary_dim > 2 else rope.theta


def _llama3(rope: RopeSpec, plain: Tensor) -> Tensor:
    """Long waves are stretched, short ones kept, those between are blended (Llama 3.1)."""
    waves = 2 * math.pi / plain
    longest, shortest = (rope.original_max_position / f for f in (rope.low_freq_factor, rope.high_freq_factor))
    share = (rope.original_max_position / waves - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - share) * plain / rope.factor + share * plain
    stretched = torch.where(waves > longest, plain / rope.factor, plain)
    return torch.where((waves >= shortest) & (waves <= longest), blended, stretched)


def _yarn(rope: RopeSpec, plain: Tensor, head_dim: int) -> Tensor:
    """Dimensions that turn often are kept, others stretched, with a ramp between (Peng et al. 2023)."""

    def dimension(turns: float) -> float:
        span = math.log(rope.original_max_position / (turns * 2 * math.pi))
        return head_dim * span / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / max(high - low, 0.001)
    kept = 1 - ramp.clamp(0, 1)
    return plain / rope.factor * (1 - kept) + plain * kept


def _attention_factor(rope: RopeSpec) -> float:
    if rope.kind not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor:
        return rope.attention_factor
    return 0.1 * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0
