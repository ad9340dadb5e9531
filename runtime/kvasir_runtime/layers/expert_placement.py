"""Of which experts a rank should have copies, so that all ranks compute about as much. Pure; called by `expert_copies`.

As DeepSeek's EPLB (2025) the experts with most tokens are copied to the ranks with least. Here an expert stays at its
home, so that a rank reads no more experts than it has room for copies, and steps divide the rows that they really have.
"""

from collections.abc import Sequence
from typing import Final

from kvasir_runtime.kernels.expert_division import Copies, divided

_TRIED: Final = 4
"""Experts of the rank with most rows, of which one is copied next."""
LEAST_GAIN: Final = 0.05
"""By which the largest load must sink for copies to be read again."""


def placed(tokens: Sequence[float], homes: Sequence[range], room: Sequence[int]) -> Copies:
    """tokens: of each expert, that went to it lately. homes: as of `divided`. room: of each rank, for so many copies.

    One copy after another is made where it lowers the largest load most, until none does or there is no room.
    """
    counts, copies = [int(one) for one in tokens], [set[int]() for _ in homes]
    loads, ranges = divided(counts, homes, _frozen(copies), 1)
    while any(len(held) < most for held, most in zip(copies, room, strict=True)):
        hottest = max(range(len(homes)), key=lambda rank: (loads[rank], -rank))
        free = [rank for rank in range(len(homes)) if len(copies[rank]) < room[rank] and rank != hottest]
        if not free:
            break
        target = min(free, key=lambda rank: (loads[rank], rank))
        here = [expert for expert in {*homes[hottest], *copies[hottest]} if expert not in copies[target]]
        here = [expert for expert in here if expert not in homes[target]]
        best = max(loads), -1
        for expert in sorted(here, key=lambda expert: (-counts[expert], expert))[:_TRIED]:
            copies[target].add(expert)
            best = min(best, (max(divided(counts, homes, _frozen(copies), 1)[0]), expert))
            copies[target].remove(expert)
        if best[1] < 0:
            break
        copies[target].add(best[1])
        loads, ranges = divided(counts, homes, _frozen(copies), 1)
    used = {(one.rank, expert) for expert, ranges_ in ranges.items() for one in ranges_ if one.end > one.first}
    return _frozen([{expert for expert in held if (rank, expert) in used} for rank, held in enumerate(copies)])


def is_worth(tokens: Sequence[float], homes: Sequence[range], old: Copies, new: Copies) -> bool:
    """Whether copies should take the place of others."""
    counts = [int(one) for one in tokens]
    before, after = (max(divided(counts, homes, copies, 1)[0]) for copies in (old, new))
    return after < before * (1 - LEAST_GAIN)


def _frozen(copies: Sequence[set[int]]) -> Copies:
    return tuple(tuple(sorted(held)) for held in copies)
