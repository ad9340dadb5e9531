"""Launch parameters of attention: a table that ships, by card, head size, bytes of a number and rows of a product.

Called by `attention` at each launch; `tuning_table` finds the table's name for a GPU. Rows are starting points from
what is published for these GPUs until a measurement of ours replaces them; the tests hold each to its GPU's shared
memory, and those for sm_90 to registers that do not spill.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

EVERY: Final = 1 << 30
"""As a key: rows of any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiles:
    """Rows of a product (query tokens times heads of a group) and positions of a tile of the cache, of one program.

    Keys wait for block ids, so the compiler spends two stages on each tile that is read ahead: 5 read two, 3 one.
    """

    block_m: int
    tile: int
    num_warps: int
    num_stages: int

    def shared_bytes(self, head_dim: int, query_bytes: int, cache_bytes: int, *, latent: bool = False) -> int:
        """About what a program takes: the queries, and as many tiles of keys and of values as are there at once.

        latent: keys are their own values, and a power of two of numbers is followed by fewer.
        """
        padded = head_dim if latent else 1 << (head_dim - 1).bit_length()
        tiles, ahead = 1 if latent else 2, self.num_stages // 2
        read = tiles * (ahead + 1) * self.tile * cache_bytes
        widened = tiles * self.tile * query_bytes if cache_bytes < query_bytes else 0
        return padded * (self.block_m * query_bytes + read + widened)


Rows = Mapping[int, AttentionTiles]
Table = Mapping[tuple[int, int], Rows]
"""By head size and bytes of a number of the queries, each up to and including; then by rows, likewise."""


def _rows(*rows: tuple[int, int, int, int, int]) -> Rows:
    """(rows at most, block_m, tile, warps, stages) each."""
    return {most: AttentionTiles(block_m=m, tile=tile, num_warps=w, num_stages=s) for most, m, tile, w, s in rows}


# Up to 16 rows is decode with groups of heads, up to 32 drafts that are verified, up to 256 short chunks. Memory at
# 4.3 TB/s and 0.8 us wants 26 KiB under way for each of 132 processors, which three programs with 64 KiB each exceed.
# Of float32 products are sums in registers: larger tiles spill.
_HOPPER: Final[Table] = {
    (64, 2): _rows((16, 16, 128, 4, 5), (32, 32, 128, 4, 5), (256, 64, 64, 4, 3), (EVERY, 128, 64, 8, 3)),
    (128, 2): _rows((16, 16, 64, 4, 5), (32, 32, 64, 4, 5), (256, 64, 64, 4, 3), (EVERY, 128, 64, 8, 3)),
    (256, 2): _rows((16, 16, 32, 4, 5), (32, 32, 32, 4, 5), (256, 64, 32, 4, 3), (EVERY, 128, 32, 8, 3)),
    (128, 4): _rows((16, 16, 32, 4, 5), (32, 32, 32, 4, 5), (EVERY, 32, 16, 8, 3)),
    (256, 4): _rows((16, 16, 16, 4, 5), (32, 32, 16, 4, 5), (EVERY, 32, 16, 8, 3)),
}
# No products of whole warp groups: 64 rows fill the registers of four warps.
_AMPERE: Final[Table] = {
    (128, 2): _rows((16, 16, 64, 4, 5), (32, 32, 64, 4, 5), (EVERY, 64, 64, 4, 3)),
    (256, 2): _rows((16, 16, 32, 4, 5), (32, 32, 32, 4, 5), (EVERY, 64, 32, 8, 3)),
    (128, 4): _rows((16, 16, 32, 4, 5), (32, 32, 32, 4, 5), (EVERY, 32, 16, 8, 3)),
    (256, 4): _rows((16, 16, 16, 4, 5), (32, 32, 16, 4, 5), (EVERY, 32, 16, 8, 3)),
}
# Less than half the shared memory, and a fifth of the bandwidth to hide.
_ADA: Final[Table] = {
    (128, 2): _rows((16, 16, 32, 4, 5), (32, 32, 32, 4, 5), (EVERY, 64, 32, 4, 3)),
    (256, 2): _rows((16, 16, 16, 4, 5), (32, 32, 16, 4, 5), (EVERY, 64, 16, 8, 3)),
    (128, 4): _rows((16, 16, 16, 4, 5), (32, 32, 16, 4, 5), (EVERY, 32, 16, 8, 3)),
    (256, 4): _rows((16, 16, 16, 4, 3), (EVERY, 32, 16, 8, 3)),
}

# Latent rows of 512 numbers and 64: a tile of them is key and value, and 32 rows of sums take 64 registers of each
# thread of eight warps. The second is for less shared memory.
_LATENT_ROWS: Final[Mapping[int, Rows]] = {
    2: _rows((16, 16, 32, 8, 5), (EVERY, 32, 32, 8, 3)),
    4: _rows((EVERY, 16, 16, 4, 3)),
}
_SMALL_LATENT_ROWS: Final[Mapping[int, Rows]] = {
    2: _rows((16, 16, 16, 4, 5), (EVERY, 32, 16, 8, 3)),
    4: _rows((EVERY, 16, 16, 4, 1)),
}

TABLES: Final[Mapping[str, Table]] = {"H200": _HOPPER, "H100": _HOPPER, "A100": _AMPERE, "L40S": _ADA}
"""By the names of `tuning_table`."""
LATENT_TABLES: Final[Mapping[str, Mapping[int, Rows]]] = {
    "H200": _LATENT_ROWS,
    "H100": _LATENT_ROWS,
    "A100": _LATENT_ROWS,
    "L40S": _SMALL_LATENT_ROWS,
}
"""By the names of `tuning_table`, then by bytes of a number of the queries."""


def choose(card: str, head_dim: int, query_bytes: int, rows: int) -> AttentionTiles:
    """The row of the table. rows: query rows of the longest sequence, its tokens times heads per key head.

    A card that is not here takes the one that asks least. Heads of more than 256 take the widest row.
    """
    table = TABLES.get(card, _ADA)
    wide_enough = [(most, size) for most, size in table if size >= query_bytes and most >= head_dim]
    key = min(wide_enough, key=lambda key: (key[1], key[0])) if wide_enough else max(table)
    fitting = table[key]
    return fitting[min(most for most in fitting if most >= rows)]


def of_latents(card: str, query_bytes: int, rows: int) -> AttentionTiles:
    """As `choose`, for a cache of latent rows. rows: of the heads that share a program."""
    fitting = LATENT_TABLES.get(card, _SMALL_LATENT_ROWS)[query_bytes]
    return fitting[min(most for most in fitting if most >= rows)]
