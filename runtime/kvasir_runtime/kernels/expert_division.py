"""Which of the ranks that have an expert computes which of its rows, so that all have about as many. Pure.

Called for each layer of a step by `copied_experts`, on every rank with the same numbers, and with those of many steps
by `layers.expert_placement`. An expert has a home, whose rank always has it, and copies on other ranks.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

Copies = tuple[tuple[int, ...], ...]
"""By rank, the experts that it has beside its own."""
LEAST_ROWS: Final = 8
"""Of an expert on each rank: with fewer, its matrices take longer to read than to multiply with."""


class RowRange(NamedTuple):
    """Some of an expert's rows, in the order of the tokens."""

    rank: int
    first: int
    end: int


def divided(
    counts: Sequence[int], homes: Sequence[range], copies: Copies, least_rows: int = LEAST_ROWS
) -> tuple[list[int], dict[int, tuple[RowRange, ...]]]:
    """Rows that each rank computes, and of each expert that has copies which rank computes which.

    counts: of each expert's rows. homes: of each rank, the experts that are its own; together all. least_rows: that are
    left together, at least 1. The experts with most rows choose first, each the ranks with the fewest rows by then.
    """
    holders = dict[int, list[int]]()
    for rank, held in enumerate(copies):
        for expert in held:
            holders.setdefault(expert, []).append(rank)
    loads = [sum(counts[home.start : home.stop]) for home in homes]
    for expert, ranks in holders.items():
        home = next(rank for rank, own in enumerate(homes) if expert in own)
        ranks.append(home)
        loads[home] -= counts[expert]
    ranges = dict[int, tuple[RowRange, ...]]()
    for expert in sorted(holders, key=lambda expert: (-counts[expert], expert)):
        by_load = sorted(holders[expert], key=lambda rank: (loads[rank], rank))
        ranks = by_load[: max(counts[expert] // least_rows, 1)]
        found, first = list[RowRange](), 0
        for rank, rows in zip(ranks, _levelled([loads[rank] for rank in ranks], counts[expert]), strict=True):
            found.append(RowRange(rank, first, first + rows))
            first, loads[rank] = first + rows, loads[rank] + rows
        ranges[expert] = tuple(found)
    return loads, ranges


def _levelled(loads: Sequence[int], rows: int) -> list[int]:
    """How many of rows are added to each of some loads, ascending, so that the largest sum is least."""
    filled, below = 0, 0
    while filled < len(loads) and loads[filled] * filled - below <= rows:
        below += loads[filled]
        filled += 1
    level, more = divmod(rows + below, filled)
    return [level - load + (place < more) if place < filled else 0 for place, load in enumerate(loads)]
