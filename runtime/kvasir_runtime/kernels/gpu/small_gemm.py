"""What products with few tokens share: how programs divide the columns, and how a tile of results is settled.

A tile is (rows of the weight, tokens): the rows are what tensor cores need many of, and tokens are few. Programs that
share a tile leave their sums in scratch; the last to arrive adds them up, in the order of the columns,
whatever the order of arrival. So the same call gives the same bits. Neither steps nor splits depend on the number of
tokens: what is summed for a
row of x, and in which order, is the same whatever is beside it, as long as tensor cores treat the columns of a tile
alike. Beyond the table's number of tokens the vendor's library sums in its own order.

A norm before a product may be part of it: x is multiplied by the norm's weight as it is read, and what the root of its
mean square divides by follows from the same columns, so that results are scaled once, in float32.
"""

from dataclasses import dataclass
from typing import Final

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.gpu.tuning_table import GemmTuning

# Partial sums are not worth a program that finds less than this many steps of its loop.
_MIN_STEPS = 4
_MOST_SPLITS = 8
_MOST_STAGES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmShape:
    """Of a product: rows and columns of the weight, row bytes of a step, and whether it is two halves, gate and up."""

    rows: int
    columns: int
    step_bytes: int
    gated: bool

    @property
    def outputs(self) -> int:
        """Of one token."""
        return self.rows // 2 if self.gated else self.rows


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmPlan:
    """How one layer is computed on one card. arrived: (tiles,) int32 zeros, which every launch leaves as it finds them.

    A layer has counters of its own, as layers of a step may run at once; one layer never runs twice at once.
    """

    product: GemmTuning
    shape: GemmShape
    shared_bytes: int
    splits: int
    arrived: Tensor

    def launch(self, x: Tensor, norm: "NormBefore | None" = None) -> "GemmLaunch":
        """For x, of at most `product.most_tokens` tokens."""
        tokens = x.shape[0]
        tile = self.product.tile(tokens)
        block_m = max(16, triton.next_power_of_2(tokens))
        halves = 2 if self.shape.gated else 1
        inputs = 1 if norm is None or norm.residual is None else 2
        stage = halves * tile.rows * self.shape.step_bytes + inputs * block_m * self.product.columns * x.element_size()
        stages = min(tile.shared_bytes, self.shared_bytes) // stage
        tiles = -(-self.shape.outputs // tile.rows)
        room = tiles * self.splits * (halves * tile.rows + 1) * block_m if self.splits > 1 else 1
        return GemmLaunch(
            grid=(tiles, self.splits),
            out=x.new_empty((tokens, self.shape.outputs)),
            parts=torch.empty((room,), dtype=torch.float32, device=x.device),
            block_m=block_m,
            block_n=tile.rows,
            num_warps=tile.num_warps,
            num_stages=max(2, min(stages, _MOST_STAGES)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NormBefore:
    """kernels.rms_norm of x as a part of the product that reads it. residual: x's shape, or None; weight: (columns,).

    total: where the sum of x and the residual goes, contiguous; x itself where there is no residual.
    """

    residual: Tensor | None
    weight: Tensor
    eps: float
    total: Tensor

    def arguments(self) -> tuple[object, ...]:
        """Of the kernels, in their order."""
        stride = 0 if self.residual is None else self.residual.stride(0)
        return self.residual, self.total, self.weight, self.eps, stride


def norm_before(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> NormBefore:
    """With room for the sum."""
    return NormBefore(
        residual=residual,
        weight=weight,
        eps=eps,
        total=x if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device),
    )


NO_NORM: Final = (None, None, None, 0.0, 0)
"""`NormBefore.arguments` where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmLaunch:
    """One launch: its grid, its output, room for parts of sums (one element where nothing is split), its tile."""

    grid: tuple[int, int]
    out: Tensor
    parts: Tensor
    block_m: int
    block_n: int
    num_warps: int
    num_stages: int


def plan(product: GemmTuning, shape: GemmShape, processors: int, shared_bytes: int, device: torch.device) -> GemmPlan:
    """The plan of a layer by a card's table. The smallest tile decides on splits, for all numbers of tokens."""
    rows = min(tile.rows for tile in product.tiles.values())
    tiles = -(-shape.outputs // rows)
    return GemmPlan(
        product=product,
        shape=shape,
        shared_bytes=shared_bytes,
        splits=splits(tiles, -(-shape.columns // product.columns), processors * product.programs),
        arrived=torch.zeros((tiles,), dtype=torch.int32, device=device),
    )


def splits(tiles: int, steps: int, programs: int) -> int:
    """Programs that share a tile, a power of two: about so many programs in all, none with next to nothing to do."""
    room = min(programs // tiles, steps // _MIN_STEPS, _MOST_SPLITS)
    return 1 << (max(1, room).bit_length() - 1)


@triton.jit
def share(steps, SPLITS: tl.constexpr):
    """The steps of this program: first, and behind the last."""
    each = tl.cdiv(steps, SPLITS)
    first = tl.program_id(1) * each
    return first, tl.minimum(first + each, steps)


@triton.jit
def added(parts, half, PLACES: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):
    """The sums of all programs of this tile: of its `half`, of PLACES."""
    lanes = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    base = tl.program_id(0).to(tl.int64) * SPLITS * PLACES + half
    total = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for split in tl.static_range(SPLITS):
        # Written by other processors a moment ago: not to be looked for in the first-level cache.
        total += tl.load(parts + (base + split * PLACES) * (BLOCK_N * BLOCK_M) + lanes, cache_modifier=".cg")
    return total


@triton.jit
def left(parts, acc, half, PLACES: tl.constexpr, SPLITS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr):
    """Leave this program's sum in scratch."""
    lanes = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    place = (tl.program_id(0).to(tl.int64) * SPLITS + tl.program_id(1)) * PLACES + half
    tl.store(parts + place * (BLOCK_N * BLOCK_M) + lanes, acc)


@triton.jit
def weighed(some, squares, factor, residual, total, wanted, ADDED: tl.constexpr):
    """A tile of x times the norm's weight, and the sum of squares with those of the tile: (columns, tokens) each.

    factor: (columns,) float32. residual, total: pointers; the sum of both is kept by the first tile's programs.
    """
    if ADDED:
        some += tl.load(residual, mask=wanted, other=0.0)
        tl.store(total, some, mask=wanted & (tl.zeros(some.shape, tl.int32) + tl.program_id(0) == 0))
    wide = some.to(tl.float32)
    return (wide * factor[:, None]).to(some.dtype), squares + wide * wide


@triton.jit
def settle(
    acc, up, squares, columns, eps, parts, arrived, units, bias, out, tokens, rows,
    NORMED: tl.constexpr, GATED: tl.constexpr, SCALED: tl.constexpr, BIASED: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Add what the programs of this tile have, and store scale, bias and gate of it. up: acc again where not GATED.

    squares: (tokens,) of x, whose columns the norm divides by, read where NORMED.
    """
    last = True
    if SPLITS > 1:
        places: tl.constexpr = 2 if GATED else 1
        left(parts, acc, 0, places, SPLITS, BLOCK_N, BLOCK_M)
        if GATED:
            left(parts, up, 1, places, SPLITS, BLOCK_N, BLOCK_M)
        # Behind the tiles, of each tile and split.
        lanes = parts + (tl.num_programs(0) * SPLITS * places * BLOCK_N).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
        if NORMED:
            tl.store(lanes + (tl.program_id(0) * SPLITS + tl.program_id(1)) * BLOCK_M, squares)
        tl.debug_barrier()  # all threads' stores come before the arrival that one of them announces
        last = tl.atomic_add(arrived + tl.program_id(0), 1, sem="acq_rel") == SPLITS - 1
        if last:
            tl.debug_barrier()
            acc = added(parts, 0, places, SPLITS, BLOCK_N, BLOCK_M)
            if GATED:
                up = added(parts, 1, places, SPLITS, BLOCK_N, BLOCK_M)
            if NORMED:
                squares = tl.zeros((BLOCK_M,), tl.float32)
                for split in tl.static_range(SPLITS):
                    squares += tl.load(lanes + (tl.program_id(0) * SPLITS + split) * BLOCK_M, cache_modifier=".cg")
            tl.store(arrived + tl.program_id(0), 0)  # as the next launch expects it
    if last:
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        m = tl.arange(0, BLOCK_M)
        if NORMED:
            scale = tl.rsqrt(squares / columns + eps)[None, :]
            acc *= scale
            if GATED:
                up *= scale
        result = _finished(acc, units, bias, n, rows, 0, SCALED, BIASED)
        if GATED:
            result = result / (1.0 + tl.exp(-result)) * _finished(up, units, bias, n, rows, rows, SCALED, BIASED)
        place = m.to(tl.int64)[None, :] * rows + n[:, None]
        tl.store(out + place, result.to(out.dtype.element_ty), mask=(n < rows)[:, None] & (m < tokens)[None, :])


@triton.jit
def _finished(acc, units, bias, n, rows, first, SCALED: tl.constexpr, BIASED: tl.constexpr):
    if SCALED:
        acc *= tl.load(units + first + n, mask=n < rows, other=0.0)[:, None]
    if BIASED:
        acc += tl.load(bias + first + n, mask=n < rows, other=0.0).to(tl.float32)[:, None]
    return acc
