"""Which launch parameters a card gets: a table that ships with the program, so that nothing is tuned while it serves.

Called by launchers when a layer is built, and at start for the banner. A card without a
table of its own takes that of the nearest: of the same compute capability, else of the next lower, else of the lowest;
what it has less of in shared memory costs it stages. Choosing is pure; only `tuning_of` looks at a device.
Rows are starting points from what is published for these cards until a measurement of ours replaces them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache as memoised
from typing import Final, Literal

import torch

Kind = Literal["bits16", "fp8", "fp8_blocks", "int8", "int4", "mxfp4", "nvfp4"]
"""Of a weight: 16-bit numbers, e4m3 with a scale for each row, the rest with one for each group of columns."""


_DEQUANT_TOKENS: Final[Mapping[Kind, int]] = {"int8": 320, "fp8_blocks": 320, "int4": 512, "mxfp4": 512, "nvfp4": 512}
"""By counting: to unpack takes 3 bytes of traffic for each number, on an H200 as long as to multiply it by 280 tokens.

A step of 128 rows and 128 tokens is 512 cycles of Hopper's tensor cores, and 604 of instructions with 4 bits, 782 with
8, as compiled: at most 0.85 and 0.65 of the rate, which pays up to 1,500 and 510 tokens. Half of that is left to what
counting does not see.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTile:
    """What one program of a product takes. rows: of the weight; shared_bytes: for the tiles that are read ahead.

    Warps decide what multiplies: groups of four take 64 rows at once and read the weight from shared memory; with two,
    each takes 16 rows from registers, as numbers that are decoded there require.
    """

    rows: int
    num_warps: int
    shared_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTuning:
    """Of a product with few tokens. columns: that a step takes; programs: wanted for each processor.

    tiles: by tokens, up to and including the key, ascending; more tokens than the last key go to the vendor's library,
    unless `passes` of so many each are still quicker, as where that needs the weight unpacked first.
    Neither columns nor programs depend on the tokens, so that a row's sums are of the same parts whatever is beside it.
    """

    columns: int
    programs: int
    tiles: Mapping[int, GemmTile]
    passes: int = 1

    @property
    def most_tokens(self) -> int:
        """Tokens of one launch."""
        return max(self.tiles)

    def tile(self, tokens: int) -> GemmTile:
        """For so many tokens, at most `most_tokens`."""
        return self.tiles[min(most for most in self.tiles if most >= tokens)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DequantTile:
    """What one program of a product takes that unpacks its weight itself; shared_bytes: for what is read ahead."""

    rows: int
    tokens: int
    num_warps: int
    shared_bytes: int

    def stages(self, token_bytes: int, row_bytes: int) -> int:
        """Of the loop over steps in which a token and a row have so many bytes: 2 to 4."""
        return max(2, min(4, self.shared_bytes // (self.tokens * token_bytes + self.rows * row_bytes)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTuning:
    """products: by kind of weight, then by its results for a token, up to and including the key, 0 for any more.

    dequant: of products that unpack groups as they go; dequant_tokens: up to which they should be quicker than to
    unpack the weight for the vendor's library.
    """

    name: str
    capability: tuple[int, int]
    processors: int
    shared_bytes: int
    products: Mapping[Kind, Mapping[int, GemmTuning]]
    dequant: DequantTile
    dequant_tokens: Mapping[Kind, int] = field(default_factory=lambda: _DEQUANT_TOKENS)

    def dequant_tile(self, rows: int, tokens: int) -> DequantTile:
        """Of half the rows where there would be fewer programs than processors."""
        programs = -(-rows // self.dequant.rows) * -(-tokens // self.dequant.tokens)
        return self.dequant if programs >= self.processors else replace(self.dequant, rows=self.dequant.rows // 2)

    def product(self, kind: Kind, rows: int) -> GemmTuning:
        """The row of the table."""
        table = self.products[kind]
        fitting = [most for most in table if most >= rows]
        return table[min(fitting)] if fitting else table[0]


def _tiles(*tiles: tuple[int, int, int, int]) -> Mapping[int, GemmTile]:
    """(tokens at most, rows, warps, KiB of shared memory) each."""
    return {most: GemmTile(rows=rows, num_warps=warps, shared_bytes=kib << 10) for most, rows, warps, kib in tiles}


# 227 KiB of shared memory and 132 processors: two programs of 110 KiB, or four of 55, read ahead more than the 26 KiB
# a processor that memory at 4.3 TB/s and a latency of 0.8 us keep under way.
_HOPPER: Final[Mapping[Kind, Mapping[int, GemmTuning]]] = {
    "bits16": {
        65536: GemmTuning(columns=128, programs=2, tiles=_tiles((16, 64, 4, 110), (32, 64, 4, 110), (64, 128, 8, 200))),
        # Heads over a vocabulary: hundreds of tiles for each processor either way, so twice the rows for one read of x.
        0: GemmTuning(columns=128, programs=2, tiles=_tiles((16, 128, 8, 110), (32, 128, 8, 110), (64, 128, 8, 200))),
    },
    "fp8": {0: GemmTuning(columns=128, programs=4, tiles=_tiles((32, 32, 2, 55), (64, 32, 4, 75)))},
    "fp8_blocks": {0: GemmTuning(columns=128, programs=4, passes=3, tiles=_tiles((32, 32, 2, 55), (64, 32, 4, 75)))},
    "int8": {0: GemmTuning(columns=64, programs=4, passes=3, tiles=_tiles((32, 64, 2, 55), (64, 32, 4, 75)))},
    "int4": {0: GemmTuning(columns=64, programs=4, passes=3, tiles=_tiles((32, 64, 2, 55), (64, 32, 4, 75)))},
    "mxfp4": {0: GemmTuning(columns=64, programs=4, passes=3, tiles=_tiles((32, 64, 2, 55), (64, 32, 4, 75)))},
    "nvfp4": {0: GemmTuning(columns=32, programs=4, passes=3, tiles=_tiles((32, 64, 2, 55), (64, 32, 4, 75)))},
}

# Without wgmma all products take registers; 163 KiB, later 99 KiB, for the programs of a processor together.
_AMPERE: Final[Mapping[Kind, Mapping[int, GemmTuning]]] = {
    "bits16": {0: GemmTuning(columns=64, programs=3, tiles=_tiles((32, 64, 4, 50), (64, 64, 4, 75)))},
    "fp8": {0: GemmTuning(columns=128, programs=3, tiles=_tiles((32, 32, 2, 40), (64, 32, 4, 75)))},
    "fp8_blocks": {0: GemmTuning(columns=128, programs=3, passes=3, tiles=_tiles((32, 32, 2, 40), (64, 32, 4, 75)))},
    "int8": {0: GemmTuning(columns=64, programs=3, passes=3, tiles=_tiles((32, 64, 2, 40), (64, 32, 4, 50)))},
    "int4": {0: GemmTuning(columns=64, programs=3, passes=3, tiles=_tiles((32, 64, 2, 40), (64, 32, 4, 50)))},
    "mxfp4": {0: GemmTuning(columns=64, programs=3, passes=3, tiles=_tiles((32, 64, 2, 40), (64, 32, 4, 50)))},
    "nvfp4": {0: GemmTuning(columns=32, programs=3, passes=3, tiles=_tiles((32, 64, 2, 40), (64, 32, 4, 50)))},
}
_ADA: Final[Mapping[Kind, Mapping[int, GemmTuning]]] = {
    "bits16": {0: GemmTuning(columns=64, programs=2, tiles=_tiles((32, 64, 4, 48), (64, 64, 4, 48)))},
    "fp8": {0: GemmTuning(columns=128, programs=2, tiles=_tiles((32, 32, 2, 32), (64, 32, 4, 48)))},
    "fp8_blocks": {0: GemmTuning(columns=128, programs=2, passes=3, tiles=_tiles((32, 32, 2, 32), (64, 32, 4, 48)))},
    "int8": {0: GemmTuning(columns=64, programs=2, passes=3, tiles=_tiles((32, 64, 2, 32), (64, 32, 4, 48)))},
    "int4": {0: GemmTuning(columns=64, programs=2, passes=3, tiles=_tiles((32, 64, 2, 32), (64, 32, 4, 48)))},
    "mxfp4": {0: GemmTuning(columns=64, programs=2, passes=3, tiles=_tiles((32, 64, 2, 32), (64, 32, 4, 48)))},
    "nvfp4": {0: GemmTuning(columns=32, programs=2, passes=3, tiles=_tiles((32, 64, 2, 32), (64, 32, 4, 48)))},
}

# Of Hopper two groups of four warps take 64 rows each, with the weight in registers.
_WIDE: Final = DequantTile(rows=128, tokens=128, num_warps=8, shared_bytes=110 << 10)
_NARROW: Final = DequantTile(rows=128, tokens=64, num_warps=8, shared_bytes=75 << 10)

TUNED_GPUS: Final = (
    GpuTuning(name="H200", capability=(9, 0), processors=132, shared_bytes=227 << 10, products=_HOPPER, dequant=_WIDE),
    GpuTuning(name="H100", capability=(9, 0), processors=132, shared_bytes=227 << 10, products=_HOPPER, dequant=_WIDE),
    GpuTuning(
        name="A100", capability=(8, 0), processors=108, shared_bytes=163 << 10, products=_AMPERE, dequant=_NARROW
    ),
    GpuTuning(name="L40S", capability=(8, 9), processors=142, shared_bytes=99 << 10, products=_ADA, dequant=_NARROW),
)
"""Of cards with the same capability the first is the nearest to those that are not here."""


def nearest(name: str, capability: tuple[int, int], shared_bytes: int) -> GpuTuning:
    """The table for a card by its name, such as "NVIDIA H200", else by its capability; see the module."""
    for card in TUNED_GPUS:
        if card.name in name.replace("-", " ").split():
            return card
    lower = [card for card in TUNED_GPUS if card.capability <= capability]
    best = max(card.capability for card in lower) if lower else min(card.capability for card in TUNED_GPUS)
    found = next(card for card in TUNED_GPUS if card.capability == best)
    return replace(found, shared_bytes=min(found.shared_bytes, shared_bytes))


@memoised
def tuning_of(device: torch.device) -> GpuTuning:
    """The table for a device; interpreted kernels on a CPU take the first."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return TUNED_GPUS[0]
    found = torch.cuda.get_device_properties(device)
    shared = getattr(found, "shared_memory_per_block_optin", 99 << 10)
    return nearest(found.name, (found.major, found.minor), shared)


def described(device: torch.device) -> str:
    """For the line at start: "" where the card has a table of its own, else whose it takes."""
    card = tuning_of(device)
    if device.type != "cuda" or not torch.cuda.is_available():
        return ""
    name = torch.cuda.get_device_name(device)
    own = card.name in name.replace("-", " ").split()
    return "" if own else f" with launch parameters of {card.name}, as there are none for {name},"
