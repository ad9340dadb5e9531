"""Launch parameters of the grouped products of experts, and the sizes of their lists: plain arithmetic, no tensors.

The shipped choice is a table by card, bytes of an element and rows that an expert has on average; it was made from what
is published for Hopper (few rows: weights stream, so tiles are narrow and many; many rows: tiles as of any large
product) and has not been measured. Nothing is tuned while serving.
"""

from dataclasses import dataclass
from typing import Final

# Programs that a card should find before tiles grow wider than needed: two on each of Hopper's multiprocessors.
_WANTED_PROGRAMS: Final = 264
_NARROWEST: Final = 32
_WIDEST_SHORT: Final = 128
# Elements of the tile of tokens and experts that one program of the router holds, and the most tokens of one.
_ROUTED: Final = 8192
_MOST_TOKENS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeTiles:
    """block_m: pairs of a token and an expert; block_n: outputs; block_k: inputs, all of one program's step.

    together: blocks of pairs whose programs run side by side, so that they share a tile of weights in the cache.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    together: int = 8


def _hopper(m: int, n: int, k: int, warps: int, stages: int) -> MoeTiles:
    return MoeTiles(block_m=m, block_n=n, block_k=k, num_warps=warps, num_stages=stages)


# (card, bytes of an element of x) -> for at most so many pairs an expert; block_n is halved where a gate is beside it.
TABLE: Final[dict[tuple[str, int], tuple[tuple[float, MoeTiles], ...]]] = {
    ("sm_90", 2): (
        (16, _hopper(16, 128, 64, 4, 5)),
        (48, _hopper(32, 128, 64, 4, 4)),
        (128, _hopper(64, 128, 64, 4, 4)),
        (float("inf"), _hopper(128, 256, 64, 8, 4)),
    ),
    ("sm_90", 4): (
        (16, _hopper(16, 64, 32, 4, 3)),
        (float("inf"), _hopper(32, 64, 32, 4, 3)),
    ),
    # 100 KiB of shared memory a program: cards from Ampere on, whatever they are called.
    ("other", 2): (
        (16, _hopper(16, 64, 64, 4, 4)),
        (64, _hopper(32, 64, 64, 4, 3)),
        (float("inf"), _hopper(64, 128, 32, 4, 3)),
    ),
    ("other", 4): ((float("inf"), _hopper(16, 64, 32, 4, 2)),),
}


def tiles(
    card: str, element_bytes: int, pairs: int, experts: int, outputs: int, *, gated: bool, short: bool = False
) -> MoeTiles:
    """Of one product. card: such as sm_90. pairs: tokens times top_k. outputs: columns of what the product gives.

    short: weights of few bits, which become numbers in registers that the widest tiles have not got.
    """
    rows = TABLE.get((card, element_bytes), TABLE["other", element_bytes])
    chosen = next(tiles for most, tiles in rows if pairs <= most * experts)
    widest = min(chosen.block_n, _WIDEST_SHORT) if short else chosen.block_n
    block_n, blocks = widest // 2 if gated else widest, most_blocks(pairs, experts, chosen.block_m)
    # Few pairs give few programs: narrower tiles then keep the whole card reading.
    while block_n > _NARROWEST and blocks * -(-outputs // block_n) < _WANTED_PROGRAMS:
        block_n //= 2
    return MoeTiles(
        block_m=chosen.block_m,
        block_n=block_n,
        block_k=chosen.block_k,
        num_warps=chosen.num_warps,
        num_stages=chosen.num_stages,
        together=chosen.together,
    )


def most_blocks(pairs: int, experts: int, block_m: int) -> int:
    """Blocks of block_m pairs that there can be at most: each has one expert, whose last may be empty in part."""
    return (pairs + min(experts, pairs) * (block_m - 1)) // block_m


def routed_tokens(tokens: int, experts: int) -> int:
    """Tokens that one program of the router takes: all of them if they fit. One of few sizes, each compiled once."""
    wide = 1 << max(experts - 1, 1).bit_length()
    most = max(1, min(_MOST_TOKENS, _ROUTED // wide))
    return next((size for size in (4, 16) if tokens <= size < most), most)
