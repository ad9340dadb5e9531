"""From a router's scores to lists that grouped products read: who goes where, sorted by expert, made on the device.

A pair is a token and one of its experts: token * top_k + n, n counting the token's experts upwards. Pairs are listed
expert after expert; each expert begins a block of its own, so that a program of the product has one expert:

    pairs[block * block_m + i]     the i-th pair of a block, defined for i < rows[block]
    experts[block], rows[block]    its expert, and how many pairs it has; rows <= 0: nothing is to be done
    shares[pair]                   what the expert's result counts in the token's

The grid depends only on the numbers of tokens and experts, nothing is read by the host, and the lists are the same in
every run: within an expert tokens keep their order. One launch where a program can hold all tokens, else three.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvasir_runtime.kernels.expert_routing import Routing
from kvasir_runtime.kernels.gpu import moe_tiles
from kvasir_runtime.kernels.gpu.options import options

_LOWEST = tl.constexpr(-3.0e38)
# What a share is divided by: the sum over all experts, over the chosen ones, or nothing.
_ALL, _CHOSEN, _ITSELF = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
_ALIGNED = 4  # int32 of 16 bytes: were lists to begin elsewhere, kernels would be compiled once more for that
_STEPS = 4096  # elements of blocks, or programs, times experts in one turn of a loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """See the module; int32 but shares, which are float32."""

    pairs: Tensor
    experts: Tensor
    rows: Tensor
    shares: Tensor
    block_m: int

    @property
    def num_blocks(self) -> int:
        """Blocks that there can be at most, as the host knows it."""
        return self.rows.shape[0]


def align(scores: Tensor, worth: Tensor, routing: Routing, block_m: int) -> Lists:
    """scores, worth: (tokens, experts), at least one token, as `ranked` gives them; both may be the same tensor."""
    (tokens, experts), top_k = scores.shape, routing.top_k
    blocks = moe_tiles.most_blocks(tokens * top_k, experts, block_m)
    whole = -(-blocks // _ALIGNED) * _ALIGNED
    room = torch.empty(blocks * block_m + 2 * whole, dtype=torch.int32, device=scores.device)
    pairs, of_blocks, rows = room.split((blocks * block_m, whole, whole))
    of_blocks, rows = of_blocks[:blocks], rows[:blocks]
    shares = torch.empty(tokens * top_k, dtype=torch.float32, device=scores.device)
    padded, each = triton.next_power_of_2(experts), moe_tiles.routed_tokens(tokens, experts)
    sizes = {"EXPERTS": experts, "PADDED": padded, "TOP_K": top_k, "TOKENS": each}
    divided = _CHOSEN if routing.renormalised else _ITSELF if routing.by_itself else _ALL
    shared = {"SHARES": divided.value, "APART": worth is not scores}
    step = max(1, _STEPS // padded)
    warps = options(max(each, step) * padded)
    if tokens <= each:
        _align[(1,)](
            scores, worth, pairs, shares, of_blocks, rows, tokens, blocks,
            BLOCK_M=block_m, STEP=step, **shared, **sizes, **warps,
        )  # fmt: skip
        return Lists(pairs=pairs, experts=of_blocks, rows=rows, shares=shares, block_m=block_m)
    programs = -(-tokens // each)
    counts = torch.empty(programs + 1, padded, dtype=torch.int32, device=scores.device)  # the last: where experts begin
    _count[(programs,)](scores, counts, tokens, **sizes, **warps)
    _begin[(1,)](
        counts, of_blocks, rows, programs, blocks, PADDED=padded, BLOCK_M=block_m, STEP=step,
        **options(step * padded),
    )  # fmt: skip
    _place[(programs,)](
        scores, worth, counts, pairs, shares, tokens, programs, **shared, **sizes, **warps,
    )  # fmt: skip
    return Lists(pairs=pairs, experts=of_blocks, rows=rows, shares=shares, block_m=block_m)


@triton.jit(do_not_specialize=["num_tokens", "num_blocks"])
def _align(
    scores, worth, pairs, shares, experts, rows, num_tokens, num_blocks,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr, TOKENS: tl.constexpr,
    SHARES: tl.constexpr, APART: tl.constexpr, BLOCK_M: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    wide, chosen = _chosen(scores, 0, num_tokens, EXPERTS, PADDED, TOP_K, TOKENS)
    if APART:
        wide = _of_tile(worth, 0, num_tokens, EXPERTS, PADDED, TOKENS)
    count = tl.sum(chosen, 0)
    first = _blocks(count, experts, rows, num_blocks, PADDED, BLOCK_M, STEP)
    _list(wide, chosen, first, pairs, shares, 0, TOP_K, TOKENS, SHARES)


@triton.jit(do_not_specialize=["num_tokens"])
def _count(
    scores, counts, num_tokens,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    program = tl.program_id(0)
    _, chosen = _chosen(scores, program, num_tokens, EXPERTS, PADDED, TOP_K, TOKENS)
    tl.store(counts + program * PADDED + tl.arange(0, PADDED), tl.sum(chosen, 0))


@triton.jit(do_not_specialize=["num_programs", "num_blocks"])
def _begin(
    counts, experts, rows, num_programs, num_blocks,
    PADDED: tl.constexpr, BLOCK_M: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Counts become what each program finds before its own pairs of an expert."""
    expert = tl.arange(0, PADDED)
    total = tl.zeros((PADDED,), tl.int32)
    for start in range(0, num_programs, STEP):
        program = start + tl.arange(0, STEP)
        mask = (program < num_programs)[:, None]
        place = counts + program[:, None] * PADDED + expert[None, :]
        count = tl.load(place, mask=mask, other=0)
        tl.store(place, total[None, :] + tl.cumsum(count, 0) - count, mask=mask)
        total += tl.sum(count, 0)
    first = _blocks(total, experts, rows, num_blocks, PADDED, BLOCK_M, STEP)
    tl.store(counts + num_programs * PADDED + expert, first)


@triton.jit(do_not_specialize=["num_tokens", "num_programs"])
def _place(
    scores, worth, counts, pairs, shares, num_tokens, num_programs,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr, TOKENS: tl.constexpr,
    SHARES: tl.constexpr, APART: tl.constexpr,
):  # fmt: skip
    program, expert = tl.program_id(0), tl.arange(0, PADDED)
    wide, chosen = _chosen(scores, program, num_tokens, EXPERTS, PADDED, TOP_K, TOKENS)
    if APART:
        wide = _of_tile(worth, program, num_tokens, EXPERTS, PADDED, TOKENS)
    first = tl.load(counts + num_programs * PADDED + expert) + tl.load(counts + program * PADDED + expert)
    _list(wide, chosen, first, pairs, shares, program, TOP_K, TOKENS, SHARES)


@triton.jit
def _chosen(
    scores, program, num_tokens,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOP_K: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Scores of a tile in float32, and 1 where an expert is one of a token's, else 0: both (tokens, experts)."""
    token, expert = program * TOKENS + tl.arange(0, TOKENS), tl.arange(0, PADDED)
    mask = (token < num_tokens)[:, None] & (expert < EXPERTS)[None, :]
    wide = _of_tile(scores, program, num_tokens, EXPERTS, PADDED, TOKENS)
    # What is no number, and minus infinity, still come before what is no expert: every token has top_k of them.
    left = tl.where(mask & ~(wide > _LOWEST), _LOWEST, wide)
    chosen = tl.zeros((TOKENS, PADDED), tl.int32)
    for _ in tl.static_range(TOP_K):
        best = tl.argmax(left, 1, tie_break_left=True)
        taken = expert[None, :] == best[:, None]
        left = tl.where(taken, float("-inf"), left)
        chosen += taken.to(tl.int32)
    return wide, tl.where(mask, chosen, 0)


@triton.jit
def _of_tile(
    numbers, program, num_tokens,
    EXPERTS: tl.constexpr, PADDED: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """(tokens, experts) float32: minus infinity of what is no expert, 0 of what is no token."""
    token, expert = program * TOKENS + tl.arange(0, TOKENS), tl.arange(0, PADDED)
    mask = (token < num_tokens)[:, None] & (expert < EXPERTS)[None, :]
    place = token.to(tl.int64)[:, None] * EXPERTS + expert[None, :]
    wide = tl.load(numbers + place, mask=mask, other=float("-inf")).to(tl.float32)
    return tl.where((token < num_tokens)[:, None], wide, 0.0)


@triton.jit
def _blocks(
    count, experts, rows, num_blocks,
    PADDED: tl.constexpr, BLOCK_M: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Cut each expert's pairs into blocks; returns where in the list of pairs each expert begins."""
    expert = tl.arange(0, PADDED)
    needed = (count + (BLOCK_M - 1)) // BLOCK_M
    end = tl.cumsum(needed, 0)
    begin = end - needed
    past = begin * BLOCK_M + count
    for start in range(0, num_blocks, STEP):
        block = start + tl.arange(0, STEP)
        inside = (begin[None, :] <= block[:, None]) & (block[:, None] < end[None, :])
        mine = tl.sum(tl.where(inside, expert[None, :], 0), 1)
        left = tl.sum(tl.where(inside, past[None, :], 0), 1) - block * BLOCK_M
        mask = block < num_blocks
        tl.store(experts + block, mine, mask=mask)
        tl.store(rows + block, tl.minimum(left, BLOCK_M), mask=mask)
    return begin * BLOCK_M


@triton.jit
def _list(
    wide, chosen, first, pairs, shares, program,
    TOP_K: tl.constexpr, TOKENS: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """Write the pairs of a tile where its experts' lists go on, and their shares."""
    token, mine = program * TOKENS + tl.arange(0, TOKENS), chosen > 0
    pair = (token * TOP_K)[:, None] + tl.cumsum(chosen, 1) - chosen
    tl.store(pairs + first[None, :] + tl.cumsum(chosen, 0) - chosen, pair, mask=mine)
    if SHARES == _ITSELF:
        share = tl.exp(wide)
    else:
        top = tl.max(wide, 1)
        power = tl.exp(wide - tl.where(top > _LOWEST, top, 0.0)[:, None])
        total = tl.sum(tl.where(mine, power, 0.0) if SHARES == _CHOSEN else power, 1)
        share = power / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(shares + pair, share, mask=mine)
